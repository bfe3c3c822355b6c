//! Slurm's compact lists of node names: `gpu[001-004,7],login1`, `r[1-2]n[1-3]`.

/// More nodes than any group has: a longer list is a mistake.
pub const NODES_MAX: usize = 65_536;

/// The names of a node list, in its order.
///
/// # Errors
/// When it cannot be understood or is longer than [`NODES_MAX`]; says where.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for item in split_outside_brackets(list)? {
        if item.is_empty() {
            continue;
        }
        let mut expanded = vec![String::new()];
        let mut rest = item;
        while let Some((plain, after)) = rest.split_once('[') {
            let (ranges, after) = after
                .split_once(']')
                .ok_or_else(|| format!("`{item}`: a bracket is not closed"))?;
            expanded = multiply(&expanded, plain, &numbers(ranges, item)?, item)?;
            rest = after;
        }
        for name in &mut expanded {
            name.push_str(rest);
        }
        names.append(&mut expanded);
        check_count(names.len(), item)?;
    }
    if names.is_empty() {
        return Err("the node list is empty".into());
    }
    Ok(names)
}

fn check_count(count: usize, item: &str) -> Result<(), String> {
    match count > NODES_MAX {
        true => Err(format!("`{item}`: more than {NODES_MAX} nodes")),
        false => Ok(()),
    }
}

fn split_outside_brackets(list: &str) -> Result<Vec<&str>, String> {
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if inside => return Err(format!("`{list}`: a bracket in a bracket")),
            ']' if !inside => return Err(format!("`{list}`: a bracket is not opened")),
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside => {
                items.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("`{list}`: a bracket is not closed"));
    }
    items.push(list[start..].trim());
    Ok(items)
}

fn multiply(
    heads: &[String],
    plain: &str,
    numbers: &[String],
    item: &str,
) -> Result<Vec<String>, String> {
    check_count(heads.len().saturating_mul(numbers.len()), item)?;
    let each = |head: &String| -> Vec<String> {
        numbers
            .iter()
            .map(|number| format!("{head}{plain}{number}"))
            .collect()
    };
    Ok(heads.iter().flat_map(each).collect())
}

/// `001-004,7` with the zeros in front kept.
fn numbers(ranges: &str, item: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = digits.then(|| text.parse::<u64>().ok()).flatten();
            number.ok_or_else(|| format!("`{item}`: `{range}` is not a number or a range"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("`{item}`: `{range}` runs backwards"));
        }
        if to - from >= NODES_MAX as u64 {
            return Err(format!("`{item}`: more than {NODES_MAX} nodes"));
        }
        check_count(all.len() + (to - from) as usize + 1, item)?;
        let width = first.len();
        all.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_expand() {
        for (list, names) in [
            ("gpu1", "gpu1"),
            (
                "gpu[001-004,7],login1",
                "gpu001 gpu002 gpu003 gpu004 gpu7 login1",
            ),
            ("r[1-2]n[1-3]", "r1n1 r1n2 r1n3 r2n1 r2n2 r2n3"),
            ("n[9-11]-ib", "n9-ib n10-ib n11-ib"),
            ("n[08-10]", "n08 n09 n10"),
            ("a, b,,c", "a b c"),
            ("tux[5]", "tux5"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
        assert_eq!(expand("n[1-65536]").unwrap().len(), 65_536);
    }

    #[test]
    fn mistakes_are_named() {
        for list in [
            "",
            ",",
            "n[",
            "n]",
            "n[1-2",
            "n[[1]]",
            "n[]",
            "n[1,]",
            "n[2-1]",
            "n[a-b]",
            "n[1-]",
            "n[-1]",
            "n[+1-2]",
            "n[1-65537]",
            "n[1-300]m[1-300]",
            "n[0-18446744073709551615]",
            "n[99999999999999999999]",
            "n[1-40000],m[1-40000]",
        ] {
            let error = expand(list).unwrap_err();
            assert!(!error.is_empty(), "{list}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(list in r"[a-c0-9\[\],\- ]{0,40}") {
            let _ = expand(&list);
        }

        #[test]
        fn nor_does_anything_at_all(list in any::<String>()) {
            let _ = expand(&list);
        }
    }
}
