//! The report page in a real browser: sorting, theme, widths, values under the pointer.

mod chromium;
mod results;

use std::path::{Path, PathBuf};

use benches::html;
use serde_json::Value;

use self::chromium::Browser;

/// Key codes.
const TAB: u32 = 9;
const ENTER: u32 = 13;
const RIGHT: u32 = 39;

/// The first table.
const TABLE: &str = "document.querySelector('table')";
/// The head of its third column.
const HEAD: &str = "document.querySelector('table').tHead.rows[0].cells[2]";

/// A browser, and a folder for the page. `None`: there is no browser, and a line on standard output says why the test is skipped.
fn browser(test: &str) -> Option<(Browser, tempfile::TempDir)> {
    let browser = Browser::start().map_err(|reason| println!("SKIP: {test}: {reason}")).ok()?;
    Some((browser, tempfile::tempdir().unwrap()))
}

/// Write the page, and its address.
fn written(folder: &Path) -> (PathBuf, String) {
    let documents =
        [("results.json".to_owned(), results::suite()), ("other.json".to_owned(), results::plain())];
    let path = folder.join("page.html");
    std::fs::write(&path, html::render(&documents)).unwrap();
    let address = format!("file://{}", path.display());
    (path, address)
}

/// The numbers of the third column, from the top.
fn column(browser: &mut Browser) -> Vec<f64> {
    let cells = browser.value(&format!(
        "[...{TABLE}.tBodies[0].rows].map((row) => Number(row.cells[2].textContent.replaceAll(',', '')))"
    ));
    cells.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn ground(browser: &mut Browser) -> Value {
    browser.value("getComputedStyle(document.body).backgroundColor")
}

#[test]
fn the_page_works_in_a_browser() {
    let Some((mut browser, folder)) = browser("the_page_works_in_a_browser") else { return };
    let (_, address) = written(folder.path());
    browser.width(1280);
    browser.prefer("light");
    browser.open(&address);
    sorting(&mut browser);
    filter(&mut browser);
    theme(&mut browser, &address);
    values(&mut browser);
    widths(&mut browser);
    assert_eq!(browser.console, Vec::<String>::new(), "nothing is written to the console");
}

/// A table is sorted by a click on the head of a column, and by Enter when it has the focus.
fn sorting(browser: &mut Browser) {
    let before = column(browser);
    let mut sorted = before.clone();
    sorted.sort_by(f64::total_cmp);
    assert_ne!(before, sorted);
    browser.click(&format!("{HEAD}.querySelector('button')"));
    assert_eq!(column(browser), sorted);
    assert_eq!(browser.value(&format!("{HEAD}.getAttribute('aria-sort')")), "ascending");
    // The focus is where the click was.
    browser.press("Enter", ENTER);
    sorted.reverse();
    assert_eq!(column(browser), sorted);
    assert_eq!(browser.value(&format!("{HEAD}.getAttribute('aria-sort')")), "descending");
    // The next column is reached by the keyboard alone, and is the only one that is sorted.
    browser.press("Tab", TAB);
    browser.press("Enter", ENTER);
    assert_eq!(browser.value("document.querySelectorAll('[aria-sort]').length"), 1);
    assert_eq!(browser.value(&format!("{HEAD}.nextElementSibling.getAttribute('aria-sort')")), "ascending");
    // Sizes are numbers with units.
    browser.click(&format!("{TABLE}.tHead.rows[0].cells[0].querySelector('button')"));
    let sizes =
        browser.value(&format!("[...{TABLE}.tBodies[0].rows].map((row) => row.cells[0].textContent)"));
    assert_eq!((&sizes[0], &sizes[19]), (&"1K".into(), &"512K".into()));
}

/// A filter leaves the rows with its words.
fn filter(browser: &mut Browser) {
    browser.click("document.querySelector('.filter input')");
    browser.call("Input.insertText", serde_json::json!({"text": "512K"}));
    let shown = format!("[...{TABLE}.tBodies[0].rows].filter((row) => row.checkVisibility()).length");
    assert_eq!(browser.value(&shown), 2);
    assert_eq!(browser.value("document.querySelector('.filter output').textContent"), " 2 of 20 rows");
}

/// The theme is the browser's until it is changed, and is then kept.
fn theme(browser: &mut Browser, address: &str) {
    let light = ground(browser);
    browser.click("document.querySelector('#theme')");
    let dark = ground(browser);
    assert_ne!(light, dark);
    let line = "getComputedStyle(document.querySelector('.chart .line')).stroke";
    let dark_line = browser.value(line);
    browser.open(address);
    assert_eq!(ground(browser), dark);
    browser.click("document.querySelector('#theme')");
    assert_eq!(ground(browser), light);
    assert_ne!(browser.value(line), dark_line, "charts have the theme's colours");
    browser.value("localStorage.clear()");
    browser.prefer("dark");
    browser.open(address);
    assert_eq!(ground(browser), dark);
    assert_eq!(browser.value("document.querySelector('#theme').textContent"), "Light theme");
    browser.prefer("light");
    assert_eq!(ground(browser), light);
}

/// The values at a place of a chart are shown under the pointer, and by the arrow keys.
fn values(browser: &mut Browser) {
    let tip =
        "document.querySelector('.tip').checkVisibility() ? document.querySelector('.tip').textContent : ''";
    assert_eq!(browser.value(tip), "");
    // The middle of the first figure's first panel.
    browser.click("document.querySelector('figure .panels .chart')");
    let text = browser.value(tip);
    let text = text.as_str().unwrap();
    assert!(text.contains("16K, pvscsi: ") || text.contains("32K, pvscsi: "), "{text}");
    assert!(text.contains(", lsi: "), "{text}");
    browser.press("ArrowRight", RIGHT);
    let next = browser.value(tip);
    assert_ne!(next, text);
    // A series that is hidden has no values.
    browser.click("document.querySelector('figure .legend button')");
    assert_eq!(
        browser.value("document.querySelector('figure .legend button').getAttribute('aria-pressed')"),
        "false"
    );
    browser.click("document.querySelector('figure .panels .chart')");
    let text = browser.value(tip);
    assert!(!text.as_str().unwrap().contains("pvscsi: "), "{text}");
}

/// Nothing but boxes that scroll by themselves is wider than the screen.
fn widths(browser: &mut Browser) {
    browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })");
    for width in [390, 768, 1280] {
        browser.width(width);
        let wide = browser.value("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= u64::from(width), "{wide} at {width}");
    }
    browser.width(390);
    assert_eq!(
        browser.value("(() => { const box = document.querySelector('.scroll'); return box.scrollWidth > box.clientWidth; })()"),
        true
    );
}

/// Without the script, charts and tables are there, and there is no control that does nothing.
#[test]
fn the_page_is_readable_without_scripts() {
    let Some((mut browser, folder)) = browser("the_page_is_readable_without_scripts") else { return };
    let (_, address) = written(folder.path());
    browser.width(1280);
    browser.call("Emulation.setScriptExecutionDisabled", serde_json::json!({"value": true}));
    browser.open(&address);
    for (elements, fewest) in [("figure .chart .line", 6), (".card .chart .point", 2), ("td", 200)] {
        let seen = format!(
            "[...document.querySelectorAll('{elements}')].filter((each) => each.checkVisibility()).length"
        );
        assert!(browser.value(&seen).as_u64().unwrap() >= fewest, "{elements}");
    }
    assert_eq!(browser.value("document.querySelectorAll('button, input').length"), 0);
}

/// A script of the results does not run, even if it came onto the page.
#[test]
fn other_scripts_do_not_run() {
    let Some((mut browser, folder)) = browser("other_scripts_do_not_run") else { return };
    let (path, address) = written(folder.path());
    let page = std::fs::read_to_string(&path).unwrap();
    let injected = "<main><script>document.title = 'injected';</script><img src=x onerror=\"document.title = 'injected'\">";
    std::fs::write(&path, page.replacen("<main>", injected, 1)).unwrap();
    browser.open(&address);
    assert_ne!(browser.value("document.title"), "injected");
    assert!(
        browser.console.iter().any(|line| line.contains("Content Security Policy")),
        "{:?}",
        browser.console
    );
    // The page's own does.
    assert_eq!(browser.value("document.querySelectorAll('#theme').length"), 1);
}
