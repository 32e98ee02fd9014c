use facts::host::Kvm;

use super::*;
use crate::result::tests::sample;

/// Two adapters over three depths, without a suite.
fn depths() -> Document {
    let mut document = sample();
    for depth in [1, 8] {
        for index in 0..2 {
            let mut more = document.results[index].clone();
            more.queue_depth = depth;
            document.results.push(more);
        }
    }
    document
}

/// IDs of links, and existing IDs.
fn links(page: &str) -> (Vec<&str>, Vec<&str>) {
    let values = |before: &str| -> Vec<&str> {
        page.split(before).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
    };
    (values("href=\"#"), values(" id=\""))
}

#[test]
fn the_page_holds_rows_ratios_and_charts_and_loads_nothing() {
    let page = render(&[("one & only.json".into(), depths())]);
    assert!(page.contains("<dd>one &amp; only.json</dd>"));
    // Six rows and one ratio, each table with its heads.
    assert_eq!(page.matches("<tr>").count(), (1 + 6) + (1 + 1));
    assert!(page.contains(
        "<td>1.250</td><td>1.125</td><td>1.500</td><td>1.125-1.500</td><td class=\"l\">slower</td>"
    ));
    // Cost, throughput and latency over the depth: one panel of one disk, two lines.
    assert_eq!(page.matches("<figure>").count(), 3);
    assert_eq!(page.matches("over queue depth").count(), 3 * 2);
    assert!(page.contains("<title>32, pvscsi: 9,000 (8,999-9,001)</title>"), "{page}");
    // A card for the one comparison.
    assert!(page.contains("<h3>CPU cycles of device and kernel per I/O, compared</h3>"));
    assert!(page.contains("Of 1 ratios, 0 are better, 1 worse, 0 equal and 0 not decided."));
    for outside in ["http:", "https:", "src=", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let (wanted, there) = links(&page);
    assert!(wanted.len() >= 4);
    for link in wanted {
        assert_eq!(there.iter().filter(|id| **id == link).count(), 1, "{link}");
    }
    assert_eq!(page, render(&[("one & only.json".into(), depths())]), "the same page each time");
}

#[test]
fn disks_are_beside_each_other_where_no_number_varies() {
    let page = render(&[("d".into(), sample())]);
    assert!(page.contains("Throughput by disk") && !page.contains("over queue depth"));
}

#[test]
fn no_text_of_a_document_is_markup() {
    let hostile = "</script></style><img src=x onerror=alert(1)>\"'><b>&amp;";
    let mut value = serde_json::to_value(depths()).unwrap();
    for index in 0..6 {
        for field in ["adapter", "engine", "rw", "coalescing"] {
            value["results"][index][field] = format!("{hostile}{}", index % 2).into();
        }
        for field in ["format", "subformat", "path"] {
            value["results"][index]["disk"][field] = hostile.into();
        }
        value["results"][index]["disk"]["options"] = serde_json::json!([hostile]);
    }
    for field in ["name", "baseline", "candidate", "metric"] {
        value["ratios"][0][field] = hostile.into();
    }
    value["command"] = hostile.into();
    value["notes"] = serde_json::json!([hostile]);
    value["host"]["cpu"] = hostile.into();
    value["host"]["kernel"] = hostile.into();
    for suite in [None, Some(hostile), Some("pvscsi-vs-lsi"), Some("hyperv-analysis"), Some("chain")] {
        value["suite"] = suite.into();
        let document = Document::read(&value.to_string()).unwrap();
        let page = render(&[(hostile.into(), document.clone())]) + &render_live(hostile, document, hostile);
        for markup in ["<img", "<b>&amp;amp;", "onerror=alert(1)>", "'><b>"] {
            assert!(!page.contains(markup), "{suite:?}: {markup}");
        }
        // One script each.
        assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (2, 2));
        assert_eq!(page.matches("</style").count(), 2);
    }
}

#[test]
fn a_page_of_any_results_is_under_two_megabytes() {
    let mut document = depths();
    document.host.cpu = "x".repeat(3_000_000);
    document.command = Some("y".repeat(3_000_000));
    document.notes = vec!["z".repeat(5000); 1000];
    let one = document.results[0].clone();
    for index in 0..4000_u32 {
        let mut more = one.clone();
        more.disk.path = Some(format!("/{}/{index}", "p".repeat(600)));
        more.queue_depth = index;
        document.results.push(more);
    }
    let page = render(&[("a".into(), document.clone()), ("b".into(), depths())]);
    assert!(page.len() <= MOST, "{}", page.len());
    assert!(page.contains("Left out: ") && page.ends_with("</body></html>\n"));
    let small = render_within(&[("a".into(), depths())], 25_000);
    assert!(small.len() <= 25_000 && small.contains("would exceed 25 KB"), "{}", small.len());
    // The parts that fit are there.
    assert!(page.contains("id=\"section-2\"") && page.contains("<td>1.250</td>"));
}

#[test]
fn what_the_environment_leaves_open_is_said() {
    let mut document = sample();
    let page = |document: &Document| render(&[("d".into(), document.clone())]);
    assert!(page(&document).contains("KVM is nested"));
    assert!(page(&document).contains("2 processor(s)") && !page(&document).contains("as few as"));
    document.host.kvm = Kvm::Hardware;
    document.host.cores = 16;
    assert!(!page(&document).contains("What limits these results"));
    document.results[1].engine = "harness".into();
    document.results[1].runs = 2;
    assert!(page(&document).contains("Rows of the harness have no virtual CPU"));
    assert!(page(&document).contains("as few as 2 run(s)"));
    document.notes = vec!["SKIP: passthrough: no loop device".into()];
    document.command = Some("paradisk bench --runs 2".into());
    assert!(page(&document).contains("<li>SKIP: passthrough: no loop device</li>"));
    assert!(page(&document).contains("<code>paradisk bench --runs 2</code>"));
}

#[test]
fn a_live_page_is_loaded_again_and_a_report_is_not() {
    let live = render_live("bench", sample(), "12 of 40 runs");
    assert!(live.contains("http-equiv=\"refresh\"") && live.contains("12 of 40 runs"));
    assert!(live.contains("; connect-src 'self'"));
    let report = render(&[("d".into(), sample())]);
    assert!(!report.contains("refresh\"") && !report.contains("connect-src"));
    let empty = Document { results: vec![], ratios: vec![], ..sample() };
    assert!(render_live("bench", empty, "").contains("No row has been measured."));
}

/// In the first round there are rows, and no ratios.
#[test]
fn rows_without_ratios_leave_no_empty_overview() {
    let first =
        |suite: Option<&str>| Document { ratios: vec![], suite: suite.map(str::to_owned), ..sample() };
    for suite in [None, Some("pvscsi-vs-lsi"), Some("coalescing"), Some("chain"), Some("vhd-workloads")] {
        let page = render_live("bench", first(suite), "1 of 10 runs");
        let overview = page.split("id=\"overview\"").nth(1).unwrap().split("</section>").next().unwrap();
        assert!(overview.contains("No comparison yet: "), "{suite:?}: {overview}");
        assert!(!overview.contains("<div"), "{suite:?}: {overview}");
    }
    let compared = render_live("bench", sample(), "20 of 20 runs");
    assert!(
        !compared.contains("No comparison yet") && compared.contains("<p>Without a published figure:</p>")
    );
}

#[test]
fn published_claims_are_counted_apart_from_those_of_the_project_and_have_a_source() {
    let ratio =
        |metric: &str| crate::result::Ratio { metric: metric.to_owned(), ..sample().ratios[0].clone() };
    let mut document = Document { suite: Some("chain".into()), ..sample() };
    document.results.truncate(1);
    document.results = vec![document.results[0].clone(); 5];
    let labels: Vec<String> = (0..5)
        .map(|number| {
            document.results[number].disk.path = Some(format!("/{number}"));
            (document.results[number].queue_depth, document.results[number].adapter) = (32, "native".into());
            document.results[number].label()
        })
        .collect();
    document.ratios = vec![crate::result::Ratio {
        baseline: labels[0].clone(),
        candidate: labels[4].clone(),
        ..ratio("cycles_per_io.total")
    }];
    let page = render(&[("chain".into(), document)]);
    assert!(page.contains("<p>Claims of this project:</p>") && !page.contains("Published claims"), "{page}");
    assert!(page.contains("<b>\u{2717} 1</b> does not hold") && !page.contains("Source: "));
}

#[test]
fn sections_of_counted_instructions_say_so() {
    let mut document = Document { suite: Some("adapters".into()), ..sample() };
    assert!(!render(&[("d".into(), document.clone())]).contains("emulated hardware"));
    document.host.cycles_source = facts::host::CyclesSource::Instructions;
    assert!(
        render(&[("d".into(), document)])
            .contains("<h2 id=\"section-1\">Suite adapters, emulated hardware</h2>")
    );
}

/// Browsers run no script with another hash.
#[test]
fn the_security_policy_names_the_script() {
    let test = "the_security_policy_names_the_script";
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/html/page.js");
    let digest = std::process::Command::new("openssl").args(["dgst", "-sha256", "-r"]).arg(script).output();
    let Ok(digest) = digest else { return println!("SKIP: {test}: no openssl") };
    let digest = String::from_utf8(digest.stdout).unwrap();
    let hex = digest.split(' ').next().unwrap();
    let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
    assert_eq!(base64(&bytes.collect::<Vec<_>>()), SCRIPT_HASH.trim());
    assert!(!SCRIPT.contains("</script") && !SCRIPT.contains("<!--"));
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |chunk: &[u8]| -> String {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(*chunk.get(at).unwrap_or(&0)));
        let digit = |at: usize| match at <= chunk.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63]),
            false => '=',
        };
        (0..4).map(digit).collect()
    };
    bytes.chunks(3).map(group).collect()
}
