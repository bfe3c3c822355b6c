//! An open directory against listings made up page by page.

use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_engine::ports::ListEntry;

use super::*;

/// Tells how a read ended; it has room for everything.
struct End(Sender<Result<(), Errno>>);

impl DirSink for End {
    fn with_attributes(&self) -> bool {
        false
    }

    fn add(&mut self, _: u64, _: &str, _: &FileAttr, _: Duration) -> bool {
        false
    }

    fn finish(self: Box<Self>, result: Result<(), Errno>) {
        let _ = self.0.send(result);
    }
}

/// Notes the names that readers get.
struct Plain(Mutex<Vec<String>>);

impl Emit for Plain {
    fn dot(&self, _: &mut dyn DirSink, _: u64, _: &str) -> bool {
        false
    }

    fn entry(&self, _: &mut dyn DirSink, _: u64, listed: &Listed, _: Time) -> bool {
        self.0.lock().push(listed.name.to_string());
        false
    }
}

struct Reader {
    directory: Directory,
    emit: Plain,
}

impl Reader {
    fn new() -> Self {
        Self {
            directory: Directory::new(1, 7, "".into()),
            emit: Plain(Mutex::new(Vec::new())),
        }
    }

    /// Reads; gives where the end is told and what to ask the origin for.
    fn read(&self, offset: u64) -> (Receiver<Result<(), Errno>>, Option<Fetch>) {
        let (sender, receiver) = channel();
        let after = self
            .directory
            .read(offset, Box::new(End(sender)), &self.emit);
        (receiver, self.finish(after))
    }

    fn arrived(&self, fetch: &Fetch, page: &ListPage) -> Option<Fetch> {
        let after = self
            .directory
            .arrived(fetch, Ok(page), Time(1), &self.emit, &mut |_, _, _| {});
        self.finish(after)
    }

    fn finish(&self, after: After) -> Option<Fetch> {
        for (sink, result) in after.finished {
            sink.finish(result);
        }
        after.fetch
    }

    /// What was listed since the last call.
    fn names(&self) -> Vec<String> {
        std::mem::take(&mut *self.emit.0.lock())
    }
}

/// A page of directories: an object would wait for what follows it.
fn page(names: &[&str], next: Option<&str>) -> ListPage {
    let prefix = |name: &&str| ListEntry::Prefix(format!("{name}/").into());
    ListPage {
        entries: names.iter().map(prefix).collect(),
        next: next.map(Into::into),
        ..ListPage::default()
    }
}

#[test]
fn rewinding_starts_anew_although_a_page_is_on_its_way() {
    let reader = Reader::new();
    let (_, first) = reader.read(2);
    let ahead = reader
        .arrived(&first.unwrap(), &page(&["a"], Some("t")))
        .unwrap();
    assert_eq!((ahead.page, reader.names()), (1, vec!["a".to_owned()]));
    // `rewinddir` while page 1 is under way.
    let (dots, again) = reader.read(0);
    let again = again.unwrap();
    assert_eq!((dots.try_recv(), again.page), (Ok(Ok(())), 0));
    let (end, _) = reader.read(2);
    assert_eq!(
        reader.arrived(&ahead, &page(&["b"], None)),
        None,
        "too late"
    );
    assert!(end.try_recv().is_err());
    assert_eq!(reader.arrived(&again, &page(&["a", "b", "c"], None)), None);
    assert_eq!(end.try_recv(), Ok(Ok(())));
    assert_eq!(reader.names(), ["a", "b", "c"]);
}

/// Reads to the end from an origin whose page `n` is `page_of(n)`; gives how it ended and after
/// how many pages.
fn read_all(page_of: impl Fn(u64) -> ListPage) -> (Result<(), Errno>, u64) {
    let reader = Reader::new();
    let mut asked = 0;
    let mut offset = FIRST_LISTED;
    loop {
        let (end, mut fetch) = reader.read(offset);
        while let Some(next) = fetch {
            // Pages are told apart by their tokens, as an origin does it.
            let n = next
                .continuation
                .as_deref()
                .map_or(0, |token| token.parse().unwrap());
            asked += 1;
            assert!(asked < 100_000, "no end");
            fetch = reader.arrived(&next, &page_of(n));
            if let Ok(Err(errno)) = end.try_recv() {
                return (Err(errno), asked);
            }
        }
        let seen = reader.names().len() as u64;
        if seen == 0 {
            return (Ok(()), asked);
        }
        offset += seen;
    }
}

fn one(n: u64, next: u64) -> ListPage {
    page(&[&format!("n{n}")], Some(&next.to_string()))
}

#[test]
fn continuation_tokens_that_go_round_end_in_an_error() {
    for (tail, circle) in [(1, 1), (1, 2), (2, 3), (5, 100), (1000, 7)] {
        let (end, asked) = read_all(|n| one(n, if n + 1 < tail + circle { n + 1 } else { tail }));
        assert_eq!(end, Err(Errno::EIO), "{tail} {circle}");
        assert!(asked <= 4 * (tail + circle) + 4, "{tail} {circle}: {asked}");
    }
}

#[test]
fn pages_that_show_nothing_end_in_an_error_and_a_few_thousand_do_not() {
    let empty = |n: u64| page(&[], Some(&(n + 1).to_string()));
    let (end, asked) = read_all(empty);
    assert_eq!((end, asked), (Err(Errno::EIO), EMPTY_PAGES_MAX as u64));
    let few = |n: u64| match n {
        5_000 => page(&["last"], None),
        _ => empty(n),
    };
    assert_eq!(read_all(few), (Ok(()), 5_001));
}

#[test]
fn a_listing_has_a_greatest_number_of_pages() {
    let directory = Directory::new(1, 7, "".into());
    let mut state = directory.state.lock();
    for number in 1..MARKS_MAX {
        state.mark_next(
            number - 1,
            2 + number as u64,
            Some(&"t".into()),
            Pending::default(),
        );
    }
    let other: Arc<str> = "u".into();
    let first = 2 + MARKS_MAX as u64;
    assert_eq!(state.leads_nowhere(MARKS_MAX - 1, first, &other), None);
    assert!(state.leads_nowhere(MARKS_MAX, first, &other).is_some());
}
