//! What the server counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// Kinds of requests, told apart by method and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// GET of an object.
    Get,
    /// HEAD of an object.
    Head,
    /// GET of a bucket: a listing.
    List,
    /// PUT of an object.
    Put,
    /// Everything else.
    Other,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 5] = [
        Class::Get,
        Class::Head,
        Class::List,
        Class::Put,
        Class::Other,
    ];

    /// The name in the counters' JSON and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Class::Get => "get",
            Class::Head => "head",
            Class::List => "list",
            Class::Put => "put",
            Class::Other => "other",
        }
    }
}

/// Counters of a server, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests by class, answered or not.
    pub requests: BTreeMap<&'static str, u64>,
    /// Requests that a fault was applied to.
    pub faulted: u64,
    /// Bytes of objects' bodies handed to connections.
    pub body_bytes: u64,
    /// Of those, bytes handed over for the first time (by object version and offset).
    pub unique_bytes: u64,
    /// Bytes of bodies by `bucket/key`.
    pub bytes_by_key: BTreeMap<String, u64>,
    /// TCP connections accepted.
    pub connections: u64,
    /// Objects' bodies being served now.
    pub bodies_open: u64,
    /// Most bodies served at one time.
    pub bodies_open_max: u64,
}

impl Counters {
    /// Requests of one class.
    pub fn requests(&self, class: Class) -> u64 {
        self.requests.get(class.name()).copied().unwrap_or_default()
    }

    /// As JSON, for other processes.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "requests": self.requests,
            "faulted": self.faulted,
            "body_bytes": self.body_bytes,
            "unique_bytes": self.unique_bytes,
            "bytes_by_key": self.bytes_by_key,
            "connections": self.connections,
            "bodies_open": self.bodies_open,
            "bodies_open_max": self.bodies_open_max,
        })
    }
}

/// Which bytes a body holds; travels in a response's extensions to where it is counted.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) name: String,
    pub(super) etag: String,
    pub(super) start: u64,
}

/// Disjoint ranges: start to end.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range and returns how many of its bytes are new.
    fn add(&mut self, mut start: u64, mut end: u64) -> u64 {
        let mut new = end.saturating_sub(start);
        let touching: Vec<(u64, u64)> = self
            .0
            .range(..=end)
            .rev()
            .take_while(|(_, known_end)| **known_end >= start)
            .map(|(a, b)| (*a, *b))
            .collect();
        for (known_start, known_end) in touching {
            new -= known_end.min(end).saturating_sub(known_start.max(start));
            start = start.min(known_start);
            end = end.max(known_end);
            self.0.remove(&known_start);
        }
        self.0.insert(start, end);
        new
    }
}

#[derive(Debug, Default)]
struct Bytes {
    by_key: BTreeMap<String, u64>,
    seen: BTreeMap<(String, String), Ranges>,
    unique: u64,
}

/// The live counters.
#[derive(Debug, Default)]
pub(super) struct Counting {
    requests: [AtomicU64; Class::ALL.len()],
    faulted: AtomicU64,
    body_bytes: AtomicU64,
    connections: AtomicU64,
    bodies_open: AtomicU64,
    bodies_open_max: AtomicU64,
    bytes: Mutex<Bytes>,
}

impl Counting {
    pub(super) fn request(&self, class: Class) {
        self.requests[class as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn fault(&self) {
        self.faulted.fetch_add(1, Relaxed);
    }

    pub(super) fn connection(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    pub(super) fn body_opened(&self) {
        let open = self.bodies_open.fetch_add(1, Relaxed) + 1;
        self.bodies_open_max.fetch_max(open, Relaxed);
    }

    pub(super) fn body_piece(&self, len: u64) {
        self.body_bytes.fetch_add(len, Relaxed);
    }

    /// A body ended or was given up after `len` bytes.
    pub(super) fn body_closed(&self, served: &Served, len: u64) {
        self.bodies_open.fetch_sub(1, Relaxed);
        if len == 0 {
            return;
        }
        let mut bytes = self.bytes.lock();
        *bytes.by_key.entry(served.name.clone()).or_default() += len;
        let version = (served.name.clone(), served.etag.clone());
        let new = bytes
            .seen
            .entry(version)
            .or_default()
            .add(served.start, served.start + len);
        bytes.unique += new;
    }

    pub(super) fn snapshot(&self) -> Counters {
        let bytes = self.bytes.lock();
        Counters {
            requests: Class::ALL
                .map(|class| (class.name(), self.requests[class as usize].load(Relaxed)))
                .into(),
            faulted: self.faulted.load(Relaxed),
            body_bytes: self.body_bytes.load(Relaxed),
            unique_bytes: bytes.unique,
            bytes_by_key: bytes.by_key.clone(),
            connections: self.connections.load(Relaxed),
            bodies_open: self.bodies_open.load(Relaxed),
            bodies_open_max: self.bodies_open_max.load(Relaxed),
        }
    }

    /// Starts all counts anew, but for the bodies open now.
    pub(super) fn reset(&self) {
        for count in
            self.requests
                .iter()
                .chain([&self.faulted, &self.body_bytes, &self.connections])
        {
            count.store(0, Relaxed);
        }
        self.bodies_open_max
            .store(self.bodies_open.load(Relaxed), Relaxed);
        *self.bytes.lock() = Bytes::default();
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn ranges_count_new_bytes_once() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.add(10, 20), 10);
        assert_eq!(ranges.add(30, 40), 10);
        assert_eq!(ranges.add(15, 35), 10);
        assert_eq!(ranges.add(0, 50), 20);
        assert_eq!(ranges.add(5, 45), 0);
        assert_eq!(ranges.0.len(), 1);
    }
}
