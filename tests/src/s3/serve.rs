//! Connections: accepting, counting, delays, shaping, and the faults that act on a connection.

use std::future::{Future, pending};
use std::io::{self, IoSlice};
use std::net::TcpListener as StdListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use s3s::service::S3Service;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::admin;
use super::counters::{Class, Counting, Served};
use super::faults::{Fault, Faults};

type AnyError = Box<dyn std::error::Error + Send + Sync>;
type AnyBody = http_body_util::combinators::BoxBody<Bytes, AnyError>;

/// How long a body that is cut waits before its end, so that what was sent has left.
const CUT_LINGER: Duration = Duration::from_millis(15);
/// Largest piece of a shaped body: small enough that the flow is even.
const SHAPED_PIECE_BYTES: usize = 64 << 10;

/// What every connection shares.
pub(super) struct Shared {
    pub(super) service: S3Service,
    pub(super) counting: Arc<Counting>,
    pub(super) faults: Arc<Faults>,
    /// Requests signed for another region are refused when this is set.
    pub(super) region: Option<String>,
}

/// Accepts connections until the runtime ends.
pub(super) async fn accept(listener: StdListener, shared: Arc<Shared>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: some will close.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        shared.counting.connection();
        tokio::spawn(serve_connection(stream, shared.clone()));
    }
}

async fn serve_connection(stream: TcpStream, shared: Arc<Shared>) {
    let connection = Arc::new(Connection::default());
    let io = TokioIo::new(ServedStream {
        stream,
        connection: connection.clone(),
    });
    let service = service_fn(move |request| answer(request, shared.clone(), connection.clone()));
    // Errors are the client's hang-ups and our own faults.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(io, service)
        .await;
}

/// What a connection's requests and bodies share.
#[derive(Debug, Default)]
struct Connection {
    /// Close with a reset, now.
    reset: AtomicBool,
    /// With shaping: when the next piece may leave.
    next_piece: Mutex<Option<Instant>>,
}

fn classify(method: &Method, path: &str) -> Class {
    let has_key = path
        .trim_start_matches('/')
        .split_once('/')
        .is_some_and(|(_, key)| !key.is_empty());
    match (method, has_key) {
        (&Method::GET, true) => Class::Get,
        (&Method::HEAD, true) => Class::Head,
        (&Method::GET, false) => Class::List,
        (&Method::PUT, true) => Class::Put,
        _ => Class::Other,
    }
}

async fn answer(
    mut request: Request<Incoming>,
    shared: Arc<Shared>,
    connection: Arc<Connection>,
) -> Result<Response<AnyBody>, AnyError> {
    if request.uri().path().starts_with(admin::PATH) {
        return Ok(admin::answer(request, &shared)
            .await
            .map(|body| body.map_err(|e| match e {}).boxed()));
    }
    let class = classify(request.method(), request.uri().path());
    shared.counting.request(class);
    let (delay, fault) = shared.faults.meet(class, request.uri().path());
    if !delay.is_zero() {
        sleep(delay).await;
    }
    if let Some(refusal) = wrong_region(&request, shared.region.as_deref()) {
        return Ok(refusal);
    }
    if let Some(fault) = &fault {
        shared.counting.fault();
        match fault {
            Fault::Hang => pending().await,
            Fault::Status(status) => return Ok(refuse(*status)),
            Fault::Reset => {
                connection.reset.store(true, Relaxed);
                return Err("reset by a fault".into());
            }
            answer => drop(request.extensions_mut().insert(answer.clone())),
        }
    }
    let response = shared
        .service
        .call(request.map(s3s::Body::from))
        .await
        .map_err(AnyError::from)?;
    let served = response.extensions().get::<Served>().cloned();
    Ok(response.map(|body| match served {
        Some(served) => ServedBody::new(body, served, fault, shared, connection).boxed(),
        None => body.boxed(),
    }))
}

/// An error answer as S3 gives it.
fn refuse(status: u16) -> Response<AnyBody> {
    let code = match status {
        503 => "SlowDown",
        500 => "InternalError",
        403 => "AccessDenied",
        _ => "Fault",
    };
    error_answer(status, code, "")
}

fn error_answer(status: u16, code: &str, more: &str) -> Response<AnyBody> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
         <Message>said by the test server</Message>{more}</Error>"
    );
    let mut response = Response::new(Full::from(text).map_err(|e| match e {}).boxed());
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// AWS's answer to a request that is signed for another region than the bucket's.
fn wrong_region(request: &Request<Incoming>, region: Option<&str>) -> Option<Response<AnyBody>> {
    let region = region?;
    let signed = request.headers().get("authorization")?.to_str().ok()?;
    let scope = signed.split("Credential=").nth(1)?.split(',').next()?;
    if scope.split('/').nth(2)? == region {
        return None;
    }
    let more = format!("<Region>{region}</Region>");
    Some(error_answer(400, "AuthorizationHeaderMalformed", &more))
}

/// How a body is cut short.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    End,
    Reset,
    Hang,
}

/// A body on its way to a connection: counted, shaped, cut short by faults.
struct ServedBody {
    inner: s3s::Body,
    served: Served,
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    sent: u64,
    cut: Option<(u64, Cut)>,
    rest: Bytes,
    wait: Option<Pin<Box<Sleep>>>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl ServedBody {
    fn new(
        inner: s3s::Body,
        served: Served,
        fault: Option<Fault>,
        shared: Arc<Shared>,
        connection: Arc<Connection>,
    ) -> Self {
        shared.counting.body_opened();
        let cut = match fault {
            Some(Fault::ShortBody(after)) => Some((after, Cut::End)),
            Some(Fault::ResetBody(after)) => Some((after, Cut::Reset)),
            Some(Fault::HangBody(after)) => Some((after, Cut::Hang)),
            _ => None,
        };
        Self {
            inner,
            served,
            shared,
            connection,
            sent: 0,
            cut,
            rest: Bytes::new(),
            wait: None,
            linger: None,
        }
    }

    /// Under shaping: pending until the next piece may leave; then books `len` for the one after.
    fn poll_shape(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let free_at = *self.connection.next_piece.lock();
        let Some(free_at) = free_at.filter(|at| *at > Instant::now()) else {
            return Poll::Ready(());
        };
        let wait = self
            .wait
            .get_or_insert_with(|| Box::pin(sleep_until(free_at)));
        ready!(wait.as_mut().poll(cx));
        self.wait = None;
        Poll::Ready(())
    }

    /// The end of a body that is cut.
    fn poll_cut(
        &mut self,
        cut: Cut,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        if cut == Cut::Hang {
            return Poll::Pending;
        }
        let linger = self
            .linger
            .get_or_insert_with(|| Box::pin(sleep(CUT_LINGER)));
        ready!(linger.as_mut().poll(cx));
        if cut == Cut::End {
            return Poll::Ready(None);
        }
        self.connection.reset.store(true, Relaxed);
        Poll::Ready(Some(Err("reset by a fault".into())))
    }

    /// The next piece, at most as long as the cut and the shaping allow.
    fn piece(&mut self, bandwidth: u64) -> Bytes {
        let mut len = self.rest.len();
        if let Some((after, _)) = self.cut {
            len = len.min((after - self.sent) as usize);
        }
        if bandwidth > 0 {
            len = len.min(SHAPED_PIECE_BYTES);
            let span = Duration::from_secs_f64(len as f64 / bandwidth as f64);
            let mut next = self.connection.next_piece.lock();
            *next = Some(next.map_or_else(Instant::now, |at| at.max(Instant::now())) + span);
        }
        self.sent += len as u64;
        self.shared.counting.body_piece(len as u64);
        self.rest.split_to(len)
    }
}

impl HttpBody for ServedBody {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        let this = &mut *self;
        if let Some((after, cut)) = this.cut
            && this.sent == after
        {
            return this.poll_cut(cut, cx);
        }
        let bandwidth = this.shared.faults.bandwidth();
        if bandwidth > 0 {
            ready!(this.poll_shape(cx));
        }
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(this.piece(bandwidth)))))
    }

    fn is_end_stream(&self) -> bool {
        self.cut.is_none() && self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Only the header says how long a body that will be cut was meant to be.
        if self.cut.is_some() {
            return SizeHint::default();
        }
        let inner = HttpBody::size_hint(&self.inner);
        inner.exact().map_or(inner, |len| {
            SizeHint::with_exact(len + self.rest.len() as u64)
        })
    }
}

impl Drop for ServedBody {
    fn drop(&mut self) {
        self.shared.counting.body_closed(&self.served, self.sent);
    }
}

/// A connection that a fault can reset.
struct ServedStream {
    stream: TcpStream,
    connection: Arc<Connection>,
}

impl ServedStream {
    fn check_reset(&self) -> io::Result<()> {
        if self.connection.reset.load(Relaxed) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl Drop for ServedStream {
    fn drop(&mut self) {
        if self.connection.reset.load(Relaxed) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for ServedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for ServedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_reset()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_reset()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_reset()?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
