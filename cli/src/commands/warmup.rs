//! `forebay warmup`: brings files into the cache before they are needed.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::jobs::{Failed, runtime, sorted};
use crate::args::WarmupArgs;
use crate::output::{json, percent, print, table};
use crate::units::{Bytes, show_duration};
use crate::warm::following::follow;
use crate::warm::places::{Place, mounted};
use crate::warm::report::{Failure, JobReport, JobRequest, JobState, Work};

/// `--json`: what it came to.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    jobs: &'a [JobReport],
    failed: u64,
    failures: &'a [Failure],
}

/// Runs the command.
///
/// # Errors
/// When not all of it is cached at the end.
pub fn run(args: &WarmupArgs) -> Result<()> {
    let runtime = runtime()?;
    if let Some(id) = &args.stop {
        return runtime.block_on(stop(mounted()?, id, args.paths.json));
    }
    if let Some(id) = &args.status {
        return runtime.block_on(status(mounted()?, id.as_deref(), args.paths.json));
    }
    let sorted = sorted(&args.paths)?;
    let failed = Failed::new(sorted.failures);
    runtime.block_on(async {
        match args.background {
            true => start(args, sorted.places, failed).await,
            false => warm(args, sorted.places, failed).await,
        }
    })
}

fn request(args: &WarmupArgs, paths: Vec<String>) -> JobRequest {
    JobRequest {
        work: match args.metadata_only {
            true => Work::Metadata,
            false => Work::Warmup,
        },
        paths,
        parallel: args.parallel,
        attended: !args.background,
    }
}

async fn warm(args: &WarmupArgs, places: Vec<Place>, mut failed: Failed) -> Result<()> {
    let mut jobs = Vec::new();
    let mut stopped = false;
    for place in places {
        let report = follow(&place.daemon, &request(args, place.paths)).await?;
        failed.add(&report);
        if !args.paths.json {
            print(&summary(&report))?;
        }
        stopped = report.state == JobState::Stopped;
        jobs.push(report);
        if stopped {
            break;
        }
    }
    if args.paths.json {
        print_json(&mut jobs, &failed)?;
    }
    failed.print();
    match (stopped, failed.count) {
        (true, _) => bail!("stopped; what is cached stays: run the same command again to go on"),
        (false, 0) => Ok(()),
        (false, count) => bail!("{count} paths failed: not all of it is cached"),
    }
}

fn print_json(jobs: &mut [JobReport], failed: &Failed) -> Result<()> {
    // Once is enough.
    jobs.iter_mut().for_each(|job| job.failures.clear());
    let outcome = Outcome {
        jobs,
        failed: failed.count,
        failures: &failed.named,
    };
    print(&json(&outcome, true)?).map(drop)
}

async fn start(args: &WarmupArgs, places: Vec<Place>, failed: Failed) -> Result<()> {
    let mut jobs = Vec::new();
    for place in places {
        let id = place.daemon.start(&request(args, place.paths)).await?;
        if !args.paths.json {
            print(&format!("{id}\n"))?;
        }
        let begun =
            || format!("job {id} goes on: `forebay warmup --status {id}` tells how far it is");
        jobs.push(place.daemon.job(&id).await.with_context(begun)?);
    }
    if args.paths.json {
        print_json(&mut jobs, &failed)?;
    }
    failed.print();
    match failed.count {
        0 => Ok(()),
        count => bail!("{count} paths are in no mount"),
    }
}

async fn stop(places: Vec<Place>, id: &str, as_json: bool) -> Result<()> {
    let place = holder(places, id).await?;
    let report = place.daemon.stop(id).await?;
    let text = match as_json {
        true => json(&report, true)?,
        false => summary(&report),
    };
    print(&text).map(drop)
}

async fn status(places: Vec<Place>, id: Option<&str>, as_json: bool) -> Result<()> {
    if let Some(id) = id {
        let place = holder(places, id).await?;
        let report = place.daemon.job(id).await?;
        let text = match as_json {
            true => json(&report, true)?,
            false => summary(&report),
        };
        print(&text)?;
        let mut failed = Failed::default();
        failed.add(&report);
        if !as_json {
            failed.print();
        }
        return match (report.state, report.failed) {
            (JobState::Running | JobState::Checking, _) | (JobState::Done, 0) => Ok(()),
            (JobState::Stopped, _) => bail!("job {id} was stopped"),
            (JobState::Done, count) => bail!("{count} paths of job {id} failed"),
        };
    }
    let (mut jobs, mut silent) = (Vec::new(), 0);
    for place in places {
        match place.daemon.jobs().await {
            Ok(more) => jobs.extend(more),
            Err(error) => {
                eprintln!("forebay: {error:#}");
                silent += 1;
            }
        }
    }
    let text = match (as_json, jobs.is_empty()) {
        (true, _) => json(&jobs, true)?,
        (false, true) => "no jobs\n".to_owned(),
        (false, false) => overview(&jobs),
    };
    print(&text)?;
    match silent {
        0 => Ok(()),
        count => bail!("{count} mounts do not tell their jobs"),
    }
}

/// The mount that has the job.
async fn holder(places: Vec<Place>, id: &str) -> Result<Place> {
    let mut silent = None;
    for place in places {
        match place.daemon.jobs().await {
            Ok(jobs) if jobs.iter().any(|job| job.id == id) => return Ok(place),
            Ok(_) => {}
            // Another mount may have it.
            Err(error) => silent = silent.or(Some(error)),
        }
    }
    if let Some(error) = silent {
        return Err(error);
    }
    bail!("no mount of this user has a job {id} (any more): `forebay warmup --status` lists them")
}

fn overview(jobs: &[JobReport]) -> String {
    let header = [
        "JOB",
        "WORK",
        "STATE",
        "MOUNT POINT",
        "FILES",
        "BYTES",
        "SHARE",
        "TIME",
        "FAILED",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(jobs.iter().map(|job| {
        vec![
            job.id.clone(),
            name(job).to_owned(),
            match &job.origin {
                Some(_) => format!("{}, S3 silent", state(job.state)),
                None => state(job.state).to_owned(),
            },
            job.mount_point.clone(),
            format!("{}/{}", job.files_done, job.files),
            match job.work {
                // Names alone: no bytes are brought.
                Some(Work::Metadata) => "-".into(),
                _ => format!("{}/{}", Bytes(job.bytes_done), Bytes(job.bytes)),
            },
            match job.work {
                Some(Work::Metadata) => percent(job.files_done, job.files),
                _ => percent(job.bytes_done, job.bytes),
            },
            took(job),
            job.failed.to_string(),
        ]
    }));
    table(&rows, &[4, 5, 6, 7, 8])
}

fn name(job: &JobReport) -> &'static str {
    match job.work {
        Some(Work::Metadata) => "metadata",
        Some(Work::Check) => "check",
        Some(Work::Evict) => "evict",
        Some(Work::Warmup) | None => "warmup",
    }
}

fn state(state: JobState) -> &'static str {
    match state {
        JobState::Running => "running",
        JobState::Checking => "checking",
        JobState::Done => "done",
        JobState::Stopped => "stopped",
    }
}

fn took(job: &JobReport) -> String {
    show_duration(Duration::try_from_secs_f64(job.seconds).unwrap_or_default())
}

/// One line for a job.
fn summary(job: &JobReport) -> String {
    let what = match (job.work, job.state) {
        (Some(Work::Metadata), _) => format!("attributes of {} files", job.files),
        (_, JobState::Done) if job.full + job.partial + job.none > 0 || job.files == 0 => format!(
            "{} of {} cached ({}) in {} of {} files",
            Bytes(job.cached_bytes),
            Bytes(job.bytes),
            percent(job.cached_bytes, job.bytes),
            job.full,
            job.files
        ),
        _ => format!(
            "{} of {} gone through in {} of {} files",
            Bytes(job.bytes_done),
            Bytes(job.bytes),
            job.files_done,
            job.files
        ),
    };
    let origin = job.origin.as_ref();
    let origin = origin.map_or(String::new(), |origin| format!("; S3 {origin}"));
    format!(
        "{}: {what}, {}, {} failed, {}{origin}\n",
        job.mount_point,
        took(job),
        job.failed,
        state(job.state)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::scripted::{Answer, Scripted};
    use crate::warm::asking::Daemon;

    /// Of two mounts, the first of which does not answer.
    #[tokio::test]
    async fn a_job_is_found_although_another_mount_does_not_answer() {
        let job = JobReport {
            id: "7-1".into(),
            state: JobState::Done,
            ..JobReport::default()
        };
        let jobs = || Answer::Json(serde_json::to_string(std::slice::from_ref(&job)).unwrap());
        let silent = Scripted::start([Answer::Closed, Answer::Closed, Answer::Closed]);
        let with_it = Scripted::start([jobs(), jobs(), jobs(), jobs()]);
        let places = || {
            let sockets = [&silent.socket, &with_it.socket].into_iter();
            let place = |socket| Place {
                mount_point: std::path::PathBuf::new(),
                daemon: Daemon::new(socket),
                paths: Vec::new(),
            };
            sockets.map(|socket| place(socket)).collect::<Vec<_>>()
        };
        let place = holder(places(), "7-1").await.unwrap();
        assert_eq!(place.daemon.jobs().await.unwrap().len(), 1);
        // Whether it is there is not known.
        let Err(error) = holder(places(), "7-2").await else {
            panic!("it is nowhere");
        };
        assert!(
            format!("{error:#}").contains("does not answer"),
            "{error:#}"
        );
        let error = status(places(), None, true).await.unwrap_err();
        assert!(error.to_string().contains("1 mounts"), "{error}");
    }

    #[test]
    fn a_job_is_told_on_one_line() {
        let mut job = JobReport {
            mount_point: "/m".into(),
            work: Some(Work::Warmup),
            state: JobState::Done,
            files: 4,
            files_done: 4,
            bytes: 8 << 20,
            bytes_done: 8 << 20,
            cached_bytes: 4 << 20,
            full: 3,
            none: 1,
            failed: 1,
            seconds: 2.0,
            ..JobReport::default()
        };
        assert_eq!(
            summary(&job),
            "/m: 4 MiB of 8 MiB cached (50.0 %) in 3 of 4 files, 2.0 s, 1 failed, done\n"
        );
        job.state = JobState::Stopped;
        assert!(summary(&job).contains("8 MiB of 8 MiB gone through in 4 of 4 files"));
        assert!(overview(std::slice::from_ref(&job)).contains("stopped"));
        // Attributes bring no bytes.
        job.work = Some(Work::Metadata);
        job.bytes_done = 0;
        let text = overview(&[job]);
        assert!(text.contains("100.0 %") && !text.contains("MiB"), "{text}");
    }
}
