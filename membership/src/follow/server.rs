//! A member's side.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use super::messages::{Answer, QUESTION_BYTES_MAX, Question, read, write};
use crate::identity::{from_hex, hex};
use crate::views::Views;

/// A question is answered after so long although nothing changed: the asker sees that the member lives.
pub(super) const ANSWER_AFTER: Duration = Duration::from_secs(20);

/// Answers the questions of one proven control connection until it ends. `stats` tells this member's counters, or why
/// it does not.
///
/// # Errors
/// When the connection fails, or brings what is not a question.
pub async fn answer<F>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    views: &Views,
    stats: impl Fn() -> F,
) -> io::Result<()>
where
    F: Future<Output = Result<serde_json::Value, String>>,
{
    while let Some(question) = read(stream, QUESTION_BYTES_MAX).await? {
        let reply = match question {
            Question::GetView(known) => view(views, &known).await,
            Question::GetStats => match stats().await {
                Ok(stats) => Answer::Stats(stats),
                Err(why) => Answer::Error(why),
            },
        };
        write(stream, &reply).await?;
    }
    Ok(())
}

async fn view(views: &Views, known: &str) -> Answer {
    match (known.is_empty(), from_hex(known)) {
        (false, None) => Answer::Error("get_view wants 16 hexadecimal digits, or nothing".into()),
        (_, known) => tokio::time::timeout(ANSWER_AFTER, other_than(views, known))
            .await
            .unwrap_or(Answer::Unchanged),
    }
}

async fn other_than(views: &Views, known: Option<u64>) -> Answer {
    let mut newest = views.watch();
    let differs = newest
        .wait_for(|view| {
            view.as_ref()
                .is_some_and(|view| Some(view.fingerprint) != known)
        })
        .await;
    match differs.as_deref() {
        Ok(Some(view)) => Answer::View(view.roster.members().to_vec()),
        _ => Answer::Unchanged,
    }
}

/// How a known view is named in a question.
pub(super) fn name(fingerprint: Option<u64>) -> String {
    fingerprint.map(hex).unwrap_or_default()
}
