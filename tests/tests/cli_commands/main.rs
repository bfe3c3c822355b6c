//! The command line as users meet it: the real binary against the embedded S3 server.

mod cache;
mod cat;
mod credentials;
mod disk;
mod doctor;
mod errors;
mod foreign;
mod lifecycle;
mod names;
mod options;
mod readers;
mod reports;
mod support;
mod warmup;
