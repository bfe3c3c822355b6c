//! The page of `forebay-perf report` in a real browser: it is not blank, nothing leaves its place, and nothing lies over another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay_perf::outcome::{Outcome, SideOutcome};
use serde_json::Value;

mod schema;

/// Put into a copy of the page: asks the browser where things are. Ends with what it found, as JSON.
const LOOK: &str = r#"<script>
const faults = [], told = (what, item) => faults.push(what + ': ' + (item.textContent || item.getAttribute('aria-label') || item.tagName).trim().slice(0, 60));
const box = item => item.getBoundingClientRect();
const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
const within = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
// A window is 500 wide at least; the page is as wide as it was told.
const wide = Math.round(box(document.body).width);
for (const item of document.querySelectorAll('main *')) if (!item.closest('.wide *, svg') && box(item).right > wide + 1) told('beyond the page', item);
const charts = [...document.querySelectorAll('svg.chart')], tables = [...document.querySelectorAll('.wide')];
let texts = 0, fine = Infinity;
for (const chart of charts) {
  const own = box(chart);
  if (own.left < 0 || own.right > wide || own.width < 200 || own.height < 30) told('chart out of the page', chart);
  const words = [...chart.querySelectorAll('text')];
  texts += words.length;
  words.forEach((word, n) => {
    fine = Math.min(fine, box(word).height);
    if (!within(box(word), own)) told('text out of its chart', word);
    words.slice(n + 1).forEach(other => meet(box(word), box(other)) && told('texts meet, ' + other.textContent, word));
  });
  for (const shape of chart.querySelectorAll('rect, circle, path, line')) if (!within(box(shape), own)) told('shape out of its chart', chart);
}
const blocks = charts.concat(tables, [...document.querySelectorAll('h1, h2, dl, ul.notes, figcaption, ul.key')]);
blocks.forEach((one, n) => blocks.slice(n + 1).forEach(other => meet(box(one), box(other)) && told('lies over another', one)));
document.body.innerHTML = '<pre id="look">' + JSON.stringify({charts: charts.length, tables: tables.length, texts, fine, wide, faults}).replace(/[<&]/g, '') + '</pre>';
</script></body>"#;

fn browser() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names.into_iter().find(|name| {
        let told = Command::new(name).arg("--version").output();
        told.is_ok_and(|told| told.status.success())
    })
}

fn perf(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-perf"))
        .args(arguments)
        .args(["--dir", env!("CARGO_TARGET_TMPDIR")])
        .output()
        .expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A browser without a window, of such a width, told so many things; what it printed.
fn browse(name: &str, (width, height): (u32, u32), page: &Path, words: &[String]) -> String {
    let home = tempfile::tempdir().expect("there is a place for files");
    let output = Command::new("timeout")
        .args(["120", name, "--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--disable-dev-shm-usage", "--hide-scrollbars"])
        .arg(format!("--user-data-dir={}", home.path().display()))
        .arg(format!("--window-size={width},{height}"))
        .args(words)
        .arg(format!("file://{}", page.display()))
        .env("HOME", home.path())
        .output()
        .expect("the browser starts");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{name}: {}: {said}", output.status);
    text(&output.stdout)
}

/// What [`LOOK`] found in a page.
fn looked(name: &str, width: u32, page: &Path) -> Value {
    let whole = fs::read_to_string(page).expect("the page is there");
    let copy = page.with_extension("looked.html");
    // Whatever the window is, the page is so wide.
    let style = format!("<style>html {{ width: {width}px; }}</style></head>");
    let looking = whole.replace("</body>", LOOK).replace("</head>", &style);
    fs::write(&copy, looking).expect("it is written");
    let dumped = browse(name, (width, 1200), &copy, &["--dump-dom".to_owned()]);
    let found = dumped.split("<pre id=\"look\">").nth(1);
    let found = found.and_then(|rest| rest.split("</pre>").next());
    let found = found.unwrap_or_else(|| panic!("the page was not looked at: {dumped:.400}"));
    serde_json::from_str(found).unwrap_or_else(|error| panic!("{error}: {found}"))
}

fn faults(found: &Value) -> Vec<&str> {
    let all = found["faults"].as_array().expect("it is a list");
    all.iter().filter_map(Value::as_str).collect()
}

/// Outcomes of each kind: of one side, of two that differ and have the longest names, of sweeps over one and two settings.
fn outcomes(dir: &Path) -> Vec<PathBuf> {
    let moment = ["--span", "50ms", "--warm-up", "20ms", "--repeats", "4"];
    let file = |name: &str| dir.join(name);
    let measured = |command: &[&str], name: &str| {
        let json = file(name);
        let json = ["--json", json.to_str().expect("its name is text")];
        let output = perf(&[command, &moment, &json].concat());
        let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{command:?}: {said}");
        said
    };
    measured(&["run", "device:on=memory,data=16MiB"], "run.json");
    let one = Outcome::read(&file("run.json")).expect("it is an outcome");
    let mut both = one.clone();
    let side = &one.sides[0];
    let mut spans = side.spans.clone();
    for span in &mut spans {
        span.operations /= 3;
        span.bytes /= 3;
    }
    let name = "HEAD^ of-a-branch-with-quite-a-name (0123456789ab) <script>alert(1)</script>";
    let version =
        "a version that tells much more than anybody wanted to know about it & so on".to_owned();
    both.sides.push(SideOutcome::new(name, version, spans));
    let compared = forebay_perf::verdict::compare(
        name,
        "operations for each second of processor time",
        &[1.0; 5],
        &[3.0; 5],
    );
    both.verdicts = compared.into_iter().collect();
    both.notes
        .push("a note with <b>marks</b> & more".to_owned());
    both.write(&file("both.json")).expect("it is written");
    let said = measured(
        &[
            "sweep",
            "device:on=memory,data=16MiB",
            "--over",
            "depth=1..8",
        ],
        "depth.json",
    );
    assert!(
        said.contains("scaling") && said.contains("efficiency"),
        "{said}"
    );
    measured(
        &[
            "sweep",
            "device:on=memory,data=16MiB",
            "--no-ceilings",
            "--over",
            "block=4KiB,64KiB,1MiB",
            "--over",
            "depth=1,4",
        ],
        "two.json",
    );
    ["run.json", "both.json", "depth.json", "two.json"]
        .map(file)
        .to_vec()
}

fn written(dir: &Path) -> PathBuf {
    let page = dir.join("page.html");
    let files = outcomes(dir);
    let mut words: Vec<&str> = vec!["report", "-o", page.to_str().expect("its name is text")];
    words.extend(files.iter().filter_map(|file| file.to_str()));
    let output = perf(&words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    page
}

#[test]
fn a_page_shows_everything_in_its_place_in_a_browser() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory can be made");
    let page = written(dir.path());
    let whole = fs::read_to_string(&page).expect("it is there");
    for needless in ["<script", "http://", "https://", "url(", "src=", "<b>marks"] {
        assert!(!whole.contains(needless), "{needless} is in the page");
    }
    assert!(whole.contains("&lt;script&gt;alert(1)"));
    for needed in [
        "seed 1",
        "warm-up",
        "Linux",
        "forebay-perf",
        "command",
        "a note with &lt;b&gt;",
    ] {
        assert!(whole.contains(needed), "{needed} is not in the page");
    }
    let Some(name) = browser() else {
        println!("SKIPPED: the page of forebay-perf in a browser: there is no chromium");
        return;
    };
    let drawn = whole.matches("<svg class=\"chart\"").count();
    assert!(drawn >= 20, "{drawn} charts");
    for width in [1280, 360] {
        let found = looked(name, width, &page);
        let none: Vec<&str> = Vec::new();
        assert_eq!(faults(&found), none, "{width} wide");
        assert_eq!(found["charts"], drawn, "{found}");
        assert_eq!(found["wide"], width, "{found}");
        assert!(found["texts"].as_u64() > Some(100), "{found}");
        // As high as letters that can be read.
        assert!(found["fine"].as_f64() >= Some(9.0), "{found}");
    }
    // What is looked for is found where it is.
    let bad = dir.path().join("bad.html");
    let style = "<style>.chart .tick { font-size: 40px; } .pair { width: 3000px; } .chart { margin-bottom: -40px; }</style></head>";
    fs::write(&bad, whole.replace("</head>", style)).expect("it is written");
    let found = looked(name, 1280, &bad).to_string();
    for wanted in [
        "texts meet",
        "text out of its chart",
        "lies over another",
        "beyond the page",
    ] {
        assert!(found.contains(wanted), "{wanted} was not seen: {found}");
    }
    // A picture of it has much in it, one of nothing has not.
    let empty = dir.path().join("empty.html");
    fs::write(&empty, "<!doctype html><title>empty</title>").expect("it is written");
    let picture = |page: &Path| {
        let png = page.with_extension("png");
        let words = [format!("--screenshot={}", png.display())];
        browse(name, (1280, 2400), page, &words);
        fs::metadata(&png).expect("there is a picture").len()
    };
    let (something, nothing) = (picture(&page), picture(&empty));
    assert!(
        something > 5 * nothing,
        "{something} bytes, and {nothing} of an empty page"
    );
}

#[test]
fn outcomes_of_a_sweep_are_as_the_schema_says() {
    let dir = tempfile::tempdir().expect("there is a place for files");
    for file in outcomes(dir.path()) {
        let written = fs::read_to_string(&file).expect("it was written");
        let mut value: Value = serde_json::from_str(&written).expect("it is JSON");
        schema::check(&value).unwrap_or_else(|fault| panic!("{}: {fault}", file.display()));
        let Some(points) = value["points"].as_array() else {
            continue;
        };
        for point in points {
            let outcome = &point["outcome"];
            assert_eq!(
                outcome["sides"][0]["spans"].as_array().map(Vec::len),
                Some(4),
                "{point}"
            );
            for (setting, wanted) in point["at"].as_object().expect("it says where it is") {
                assert_eq!(&outcome["settings"][setting], wanted);
            }
        }
        assert_eq!(points[0]["scaling"], 1.0);
        if file.ends_with("two.json") {
            assert_eq!(value["quantity"], "bytes/s");
            let at: Vec<String> = points.iter().map(|point| point["at"].to_string()).collect();
            assert_eq!(at.len(), 6);
            assert_eq!(at[1], r#"{"block":"64KiB","depth":"1"}"#);
            assert_eq!(points[3]["scaling"], 1.0);
        } else {
            let places: Vec<&Value> = points.iter().map(|point| &point["at"]["depth"]).collect();
            assert_eq!(places, ["1", "2", "4", "8"]);
            let limits = points[0]["outcome"]["ceilings"].as_array();
            assert!(limits.is_some_and(|limits| !limits.is_empty()));
        }
        value["points"][0]["at"] = Value::from(1);
        assert!(schema::check(&value).is_err());
    }
}

#[test]
fn a_sweep_that_makes_no_sense_is_refused_and_one_point_that_fails_leaves_the_others() {
    let cases: [(&[&str], &str); 12] = [
        (&["device"], "--over"),
        (&["device", "--over", "depth"], "write SETTING=VALUE"),
        (
            &["device", "--over", "deep=1"],
            "device has no setting deep",
        ),
        (&["device", "--over", "depth="], "it may be 1 to 256"),
        (&["device", "--over", "depth=1,1"], "1 is there twice"),
        (&["device", "--over", "depth=0..8"], "it may be 1 to 256"),
        (&["device", "--over", "depth=8..2"], "no more than the last"),
        (
            &["device", "--over", "on=memory..uring"],
            "only numbers and sizes",
        ),
        (
            &["device", "--over", "depth=1", "--over", "depth=2"],
            "swept twice",
        ),
        (
            &[
                "device",
                "--over",
                "depth=1",
                "--over",
                "rate=0",
                "--over",
                "block=4KiB",
            ],
            "once or twice",
        ),
        (
            &["device:data=1MiB", "--over", "block=4KiB,1MiB"],
            "fewer blocks than depth=32",
        ),
        (
            &["group", "--over", "nodes=1,17"],
            "members=17: it may be 1 to 16",
        ),
    ];
    for (arguments, wanted) in cases {
        let output = perf(&[&["sweep"], arguments].concat());
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains(wanted),
            "{arguments:?}: {said}"
        );
    }
    // A file system in memory is no disk: that point fails, the other is measured, and told.
    let json = tempfile::NamedTempFile::new().expect("a file can be made");
    let output = Command::new(env!("CARGO_BIN_EXE_forebay-perf"))
        .args([
            "sweep",
            "device:data=16MiB",
            "--over",
            "on=uring,memory",
            "--repeats",
            "2",
        ])
        .args([
            "--span",
            "20ms",
            "--warm-up",
            "20ms",
            "--no-ceilings",
            "--dir",
            "/dev/shm/forebay-perf-test",
            "--json",
        ])
        .arg(json.path())
        .output()
        .expect("the program runs");
    let _ = fs::remove_dir("/dev/shm/forebay-perf-test");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is in memory, not on a disk"), "{said}");
    let written = fs::read_to_string(json.path()).expect("it was written");
    let value: Value = serde_json::from_str(&written).expect("it is JSON");
    schema::check(&value).expect("it is as the schema says");
    assert!(value["points"][0]["outcome"].is_null() && value["points"][0]["failed"].is_string());
    assert_eq!(
        value["points"][1]["outcome"]["sides"][0]["spans"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
}
