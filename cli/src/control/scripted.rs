//! A daemon for tests that answers what it was told to.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

/// What a request gets.
pub(crate) enum Answer {
    /// Nothing: the connection is closed.
    Closed,
    Json(String),
    /// 404, with this text.
    Refused(&'static str),
}

/// Listens until the test ends.
pub(crate) struct Scripted {
    pub socket: PathBuf,
    /// The request lines that came.
    pub asked: Arc<Mutex<Vec<String>>>,
    /// Of the script, what is left.
    pub left: Arc<Mutex<VecDeque<Answer>>>,
    _dir: tempfile::TempDir,
}

impl Scripted {
    /// Answers each request with the next of `script`.
    pub fn start(script: impl IntoIterator<Item = Answer>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("scripted.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (asked, left) = (Arc::default(), Mutex::new(script.into_iter().collect()));
        let scripted = Self {
            socket,
            asked,
            left: Arc::new(left),
            _dir: dir,
        };
        let (asked, left) = (scripted.asked.clone(), scripted.left.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = Vec::new();
                let mut some = [0; 4096];
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut some) {
                        Ok(0) | Err(_) => break,
                        Ok(bytes) => head.extend_from_slice(&some[..bytes]),
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let Some(line) = head.lines().next() else {
                    // It looked who listens.
                    continue;
                };
                asked.lock().push(line.to_owned());
                let (status, text) = match left.lock().pop_front().expect("no more is asked") {
                    Answer::Closed => continue,
                    Answer::Json(text) => ("200 OK", text),
                    Answer::Refused(text) => ("404 Not Found", text.to_owned()),
                };
                let length = text.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{text}"
                );
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        scripted
    }
}
