//! A member's transport without a member: answers fetches until it is killed.
//!
//! `forebay-tcp-peer ID` prints the address on which it listens.

#![forbid(unsafe_code)]

use anyhow::Context;
use clap::Parser;
use forebay_cli::host::MonotonicClock;
use forebay_cli::host::parker::{EventParker, Park};
use forebay_engine::ports::PeerId;
use forebay_engine::ring::Doorbell;
use forebay_tests::peer::Responder;
use forebay_transport_tcp::{Endpoint, EndpointConfig};

#[derive(Debug, Parser)]
struct Options {
    /// Its id.
    id: u64,
    /// The group.
    #[arg(long, default_value = "a group")]
    group: String,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let me = PeerId(options.id);
    let mut config = EndpointConfig::new(me, &options.group, runtime.handle().clone());
    config.listen = vec!["127.0.0.1:0".parse()?];
    let (endpoint, _control) = Endpoint::start(config)?;
    let mut parker = EventParker::new()?;
    let doorbell = Doorbell::new(parker.waker());
    let mut transport = endpoint.transport(0, doorbell.clone(), MonotonicClock::start())?;
    parker.watch(transport.fd().try_clone_to_owned()?);
    let mut responder = Responder::new(64 << 20)?;
    let address = endpoint.addresses().first().context("no listener")?;
    println!("{address}");
    loop {
        doorbell.announce_sleep();
        if !responder.turn(&mut transport) {
            parker.park(None);
        }
        doorbell.announce_awake();
    }
}
