//! A few plain HTTP paths beside S3, for other processes: counters out, faults in.
//!
//! | request | does |
//! |---|---|
//! | `GET /_forebay/counters` | the counters as JSON |
//! | `POST /_forebay/reset` | starts the counters anew |
//! | `POST /_forebay/shape?delay_ms=N&bandwidth=BYTES_PER_S` | delay of GETs, bandwidth per connection |
//! | `POST /_forebay/fault?class=get&kind=503&times=N` | adds a rule; kinds: a status, `reset`, `hang` |
//! | `POST /_forebay/clear` | removes all rules |

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};

use super::counters::Class;
use super::faults::{Fault, Rule, When};
use super::serve::Shared;

/// Where the admin paths begin. No bucket's name may begin so.
pub(super) const PATH: &str = "/_forebay/";

type Answer = Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>;

fn say(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(http_body_util::combinators::BoxBody::new(Full::from(text)));
    *answer.status_mut() = status;
    answer
}

fn parameter<'a>(request: &'a Request<Incoming>, name: &str) -> Option<&'a str> {
    let pairs = request.uri().query()?.split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

fn number(request: &Request<Incoming>, name: &str) -> Option<u64> {
    parameter(request, name)?.parse().ok()
}

fn rule(request: &Request<Incoming>) -> Option<Rule> {
    let class = parameter(request, "class")?;
    let class = Class::ALL.into_iter().find(|known| known.name() == class)?;
    let fault = match parameter(request, "kind")? {
        "reset" => Fault::Reset,
        "hang" => Fault::Hang,
        status => Fault::Status(
            status
                .parse()
                .ok()
                .filter(|code| (400..600).contains(code))?,
        ),
    };
    let when = number(request, "times").map_or(When::Always, When::Times);
    Some(Rule {
        when,
        ..Rule::always(class, fault)
    })
}

pub(super) async fn answer(request: Request<Incoming>, shared: &Shared) -> Answer {
    let path = request.uri().path().trim_start_matches(PATH);
    match (request.method(), path) {
        (&Method::GET, "counters") => {
            return say(
                StatusCode::OK,
                format!("{}\n", shared.counting.snapshot().to_json()),
            );
        }
        (&Method::POST, "reset") => shared.counting.reset(),
        (&Method::POST, "clear") => shared.faults.clear(),
        (&Method::POST, "shape") => {
            if let Some(delay_ms) = number(&request, "delay_ms") {
                shared
                    .faults
                    .set_delay(Class::Get, Duration::from_millis(delay_ms));
            }
            if let Some(bandwidth) = number(&request, "bandwidth") {
                shared.faults.set_bandwidth(bandwidth);
            }
        }
        (&Method::POST, "fault") => match rule(&request) {
            Some(rule) => shared.faults.add(rule),
            None => {
                return say(
                    StatusCode::BAD_REQUEST,
                    "class and kind are needed\n".into(),
                );
            }
        },
        _ => return say(StatusCode::NOT_FOUND, "no such admin path\n".into()),
    }
    say(StatusCode::OK, String::new())
}
