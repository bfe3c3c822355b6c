//! Messages of a control connection: a length in four bytes, little-endian, then JSON.

use std::io::{Error, ErrorKind, Result};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::record::Listed;

/// The longest message: a view of several thousand members.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The longest question.
pub const QUESTION_BYTES_MAX: usize = 4 << 10;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// The view, when it is another than this fingerprint's (16 hexadecimal digits, or empty for none yet).
    GetView(String),
    /// The counters of the member that is asked.
    GetStats,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The members, sorted by id.
    View(Vec<Listed>),
    /// The asker's view is still the newest.
    Unchanged,
    /// The counters, in a form that those agree on who tell and ask.
    Stats(serde_json::Value),
    /// Why there is no answer: the question was not understood, or cannot be answered now.
    Error(String),
}

/// Writes one message.
///
/// # Errors
/// When the connection fails, or the message is too long.
pub async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> Result<()> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(Error::from)?;
    let len = bytes.len() - 4;
    if len > MESSAGE_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "a control message is too long",
        ));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Reads one message of at most `bytes_max`; nothing at the connection's end.
///
/// # Errors
/// When the connection fails, ends within a message, or brings what is not one.
pub async fn read<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
) -> Result<Option<T>> {
    let mut len = [0; 4];
    let got = stream.read(&mut len).await?;
    if got == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut len[got..]).await?;
    let len = u32::from_le_bytes(len) as usize;
    if len > bytes_max {
        let text = format!("a control message of {len} bytes, more than {bytes_max}");
        return Err(Error::new(ErrorKind::InvalidData, text));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        let text = format!("a control message that is not understood: {error}");
        Error::new(ErrorKind::InvalidData, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::listed;

    #[tokio::test]
    async fn messages_pass_and_bad_ones_are_errors() {
        let (mut near, mut far) = tokio::io::duplex(64);
        let sent = Answer::View(vec![listed("g", "a", 1), listed("g", "b", 2)]);
        let copy = sent.clone();
        let writer = tokio::spawn(async move {
            write(&mut near, &copy).await.unwrap();
            write(&mut near, &Question::GetView("7".into()))
                .await
                .unwrap();
            near.write_all(&[3, 0, 0, 0, b'{', b'{', b'{'])
                .await
                .unwrap();
            near.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        });
        assert_eq!(
            read::<Answer>(&mut far, MESSAGE_BYTES_MAX).await.unwrap(),
            Some(sent)
        );
        let question = read::<Question>(&mut far, QUESTION_BYTES_MAX)
            .await
            .unwrap();
        assert_eq!(question, Some(Question::GetView("7".into())));
        for part in ["not understood", "4294967295 bytes"] {
            let error = read::<Answer>(&mut far, MESSAGE_BYTES_MAX)
                .await
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
        }
        writer.await.unwrap();
        assert_eq!(
            read::<Answer>(&mut far, MESSAGE_BYTES_MAX).await.unwrap(),
            None
        );
    }

    #[test]
    fn the_form_of_messages_is_fixed() {
        let text = |answer: &Answer| serde_json::to_string(answer).unwrap();
        assert_eq!(
            serde_json::to_string(&Question::GetView("00".into())).unwrap(),
            r#"{"get_view":"00"}"#
        );
        assert_eq!(
            serde_json::to_string(&Question::GetStats).unwrap(),
            r#""get_stats""#
        );
        let stats = Answer::Stats(serde_json::json!({"a": 1}));
        assert_eq!(text(&stats), r#"{"stats":{"a":1}}"#);
        assert_eq!(text(&Answer::Unchanged), r#""unchanged""#);
        let view = text(&Answer::View(vec![listed("g", "a", 1)]));
        assert!(view.starts_with(r#"{"view":[{"id":""#), "{view}");
        assert!(view.ends_with(r#""node":"a","weight":1,"cores":1,"addresses":["127.0.0.1:1"],"version":"0.1.0"}]}"#), "{view}");
    }
}
