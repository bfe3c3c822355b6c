//! The jobs of a daemon: started, asked for, stopped, forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_fuse::{FuseReply, Namespace};
use parking_lot::Mutex;
use tokio::sync::mpsc::Sender;
use tokio::sync::{Semaphore, watch};

use super::attributes::Walk;
use super::engine::MountEngine;
use super::listing::Lister;
use super::names::{Leave, Leaving, Names};
use super::once::{Asked, once};
use super::pass::{Aim, ForgetPages, Pass};
use super::report::{CheckLine, JobReport, JobRequest, JobState, PARALLEL_MAX, Work};
use super::tally::Tally;

/// Jobs under way at once.
const RUNNING_MAX: usize = 16;
/// Jobs that are over and can still be asked for.
const OVER_MAX: usize = 16;
/// A job that someone waits for ends when nobody has asked for it for so long.
const UNATTENDED_AFTER: Duration = Duration::from_secs(15);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One job.
#[derive(Debug)]
pub struct Job {
    /// Its name.
    pub id: String,
    /// What came out of it.
    pub tally: Arc<Tally>,
    stop: watch::Sender<bool>,
    attended: bool,
    asked: Mutex<Instant>,
}

impl Job {
    /// Ends it early; what is under way in the engine ends by itself.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Someone asks for it.
    pub fn report(&self) -> JobReport {
        *self.asked.lock() = Instant::now();
        self.tally.report()
    }

    async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        let told = async {
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let forgotten = async {
            while !self.attended || self.asked.lock().elapsed() < UNATTENDED_AFTER {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = told => {}
            () = forgotten => {}
        }
    }
}

/// What jobs work on.
#[derive(Clone)]
pub struct Mounted {
    /// Where, as users see it.
    pub mount_point: String,
    /// The engine.
    pub engine: MountEngine,
    /// The tree's root: empty, or ending in a slash.
    pub root: Arc<str>,
    /// The tree.
    pub namespace: Arc<Namespace<FuseReply>>,
    /// Tells the kernel what was dropped.
    pub forget_pages: ForgetPages,
}

/// All jobs of a mount.
pub struct Jobs {
    mounted: Mounted,
    next: AtomicU64,
    jobs: Mutex<BTreeMap<u64, Arc<Job>>>,
}

impl Jobs {
    /// No jobs yet.
    pub fn new(mounted: Mounted) -> Arc<Self> {
        Arc::new(Self {
            mounted,
            next: AtomicU64::new(1),
            jobs: Mutex::default(),
        })
    }

    /// Starts a job on the present tokio runtime. The lines of a check go to `lines`.
    ///
    /// # Errors
    /// When too many are under way.
    pub fn start(
        &self,
        request: JobRequest,
        lines: Option<Sender<CheckLine>>,
    ) -> Result<Arc<Job>, String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", std::process::id());
        let mount_point = self.mounted.mount_point.clone();
        let job = Arc::new(Job {
            id: id.clone(),
            tally: Arc::new(Tally::new(id, mount_point, request.work)),
            stop: watch::channel(false).0,
            attended: request.attended,
            asked: Mutex::new(Instant::now()),
        });
        {
            let mut jobs = self.jobs.lock();
            let is_over = |job: &Arc<Job>| job.tally.state().is_over();
            let running = jobs.values().filter(|job| !is_over(job)).count();
            if running >= RUNNING_MAX {
                return Err(format!(
                    "{running} jobs are under way at {}: wait for one of them, or stop one (`forebay warmup --status` lists them)",
                    self.mounted.mount_point
                ));
            }
            let over = jobs.iter().filter(|(_, job)| is_over(job));
            let over: Vec<u64> = over.map(|(number, _)| *number).collect();
            let too_many = (over.len() + 1).saturating_sub(OVER_MAX);
            over.iter().take(too_many).for_each(|number| {
                jobs.remove(number);
            });
            jobs.insert(number, job.clone());
        }
        let running = job.clone();
        let engine = self.mounted.engine.for_job();
        let mounted = Mounted {
            engine: engine.clone(),
            ..self.mounted.clone()
        };
        tokio::spawn(async move {
            let work = mounted.work(request, running.tally.clone(), lines.clone());
            let state = tokio::select! {
                () = work => JobState::Done,
                () = running.stopped() => JobState::Stopped,
                never = engine.watch(&running.tally) => match never {},
            };
            running.tally.enter(state);
            if let Some(lines) = lines {
                let report = Box::new(running.tally.report());
                let _ = lines.send(CheckLine::Summary(report)).await;
            }
        });
        Ok(job)
    }

    /// The job of that name.
    pub fn get(&self, id: &str) -> Option<Arc<Job>> {
        let jobs = self.jobs.lock();
        jobs.values().find(|job| job.id == id).cloned()
    }

    /// All jobs, without the names of what failed. Does not count as asking for them.
    pub fn list(&self) -> Vec<JobReport> {
        let jobs = self.jobs.lock();
        let reports = jobs.values().map(|job| JobReport {
            failures: Vec::new(),
            ..job.tally.report()
        });
        reports.collect()
    }
}

impl Mounted {
    async fn work(self, request: JobRequest, tally: Arc<Tally>, lines: Option<Sender<CheckLine>>) {
        let paths: Arc<[Asked]> = once(request.paths).into();
        let parallel = request.parallel.clamp(1, PARALLEL_MAX);
        let names = Names {
            namespace: self.namespace.clone(),
            forget_pages: self.forget_pages.clone(),
        };
        let lister = Lister::new(self.engine.clone(), self.root.clone(), names);
        let pass = |aim| Pass {
            engine: self.engine.clone(),
            root: self.root.clone(),
            aim,
            tally: tally.clone(),
        };
        let start = |leave| lister.start(paths.clone(), Some(tally.clone()), leave);
        match (request.work, lines) {
            (Work::Metadata, _) => {
                let walk = Walk {
                    engine: self.engine.clone(),
                    lister: lister.clone(),
                    root: self.root.clone(),
                    tally: tally.clone(),
                    permits: Arc::new(Semaphore::new(parallel as usize - 1)),
                };
                Arc::new(walk).run(&paths).await;
            }
            (Work::Warmup, _) => {
                let (engine, root) = (self.engine.clone(), self.root.clone());
                let (leaving, directories) = Leaving::new(engine, root, tally.clone());
                let leave = Leave::Directories(directories);
                let warm = pass(Aim::Warm);
                tokio::join!(warm.run(start(leave), parallel), leaving.run());
                // What came later may have pushed out what came before. Failures that are met again are known
                // only while all of them are named.
                if tally.names_all() {
                    tally.enter(JobState::Checking);
                    let listed = |asked: &&Asked| tally.was_listed(&asked.path);
                    let again: Vec<Asked> = paths.iter().filter(listed).cloned().collect();
                    let again = lister.start(again.into(), None, Leave::Before);
                    pass(Aim::Confirm).run(again, parallel).await;
                }
            }
            (Work::Check, Some(lines)) => {
                pass(Aim::Check(lines))
                    .run(start(Leave::Nothing), parallel)
                    .await;
            }
            (Work::Check, None) => {}
            (Work::Evict, _) => {
                pass(Aim::Evict(self.forget_pages.clone()))
                    .run(start(Leave::Nothing), parallel)
                    .await;
            }
        }
    }
}
