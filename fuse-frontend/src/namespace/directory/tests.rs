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
            directory: Directory::new(7, "".into()),
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
