//! `forebay doctor`: what of this machine would hold a mount or member up.

use anyhow::{Result, bail};

use crate::args::DoctorArgs;
use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::{Question, examine};
use crate::host::{Machine, default_memory_bytes};
use crate::output::{json, print, table};

/// Runs the command.
///
/// # Errors
/// When something will not work.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let memory_bytes = match args.memory {
        Some(memory) => memory.0,
        None => default_memory_bytes(&Machine::read()?),
    };
    let findings = examine(&Question {
        memory_bytes,
        networks: args.group_ip.clone(),
        rdma: args.rdma.wanted(),
    });
    let text = match args.json {
        true => json(&findings, true)?,
        false => listing(&findings),
    };
    print(&text)?;
    let problems = findings.iter().filter(|f| f.verdict == Verdict::Problem);
    match problems.count() {
        0 => Ok(()),
        1 => bail!("1 problem: see PROBLEM above, and `->` for what to do"),
        count => bail!("{count} problems: see PROBLEM above, and `->` for what to do"),
    }
}

/// A line each; below it, what to do.
fn listing(findings: &[Finding]) -> String {
    let row = |finding: &Finding| {
        vec![
            finding.area.to_owned(),
            finding.object.clone(),
            finding.verdict.to_string(),
            finding.found.replace('\n', " "),
        ]
    };
    let rows: Vec<Vec<String>> = findings.iter().map(row).collect();
    let mut text = String::new();
    for (line, finding) in table(&rows, &[]).lines().zip(findings) {
        text.push_str(line);
        text.push('\n');
        if let Some(advice) = &finding.advice {
            text.push_str(&format!("    -> {advice}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stands_below_what_it_is_about() {
        let findings = [
            Finding::ok("fuse", "/dev/fuse", "can be opened"),
            Finding::problem("rdma", "devices", "none\nat all", "plug one in"),
        ];
        assert_eq!(
            listing(&findings[..1]),
            "fuse  /dev/fuse  ok  can be opened\n"
        );
        assert!(listing(&findings[1..]).ends_with("none at all\n    -> plug one in\n"));
    }
}
