//! Headless Chromium, driven by the DevTools protocol over a pipe: JSON messages that end with a zero byte, on descriptors 3 and 4.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// A browser that starts on a loaded machine takes some seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A browser with one open page.
pub(crate) struct Browser {
    process: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    next: u64,
    /// Errors and warnings of the console, exceptions, violations of the security policy.
    pub(crate) console: Vec<String>,
    loaded: bool,
    _profile: TempDir,
}

impl Browser {
    /// Start it; the reason where it is not installed.
    pub(crate) fn start() -> Result<Self, String> {
        let found = |folder: &Path| folder.join("chromium").is_file();
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| found(&folder)) {
            return Err("no chromium (package chromium)".to_owned());
        }
        let profile = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut process = Command::new("sh")
            .arg("-c")
            .arg("exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe --user-data-dir=\"$0\" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1")
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let requests = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in output.split(0) {
                let Ok(message) = message else { return };
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            process,
            requests,
            messages,
            session: None,
            next: 0,
            console: Vec::new(),
            loaded: false,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = target["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        Ok(browser)
    }

    /// Call a method; its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut request = json!({"id": self.next, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = session.clone().into();
        }
        let mut bytes = request.to_string().into_bytes();
        bytes.push(0);
        self.requests.write_all(&bytes).expect("the browser reads");
        loop {
            let message = self.receive();
            if message["id"] == self.next {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
        }
    }

    /// The next message; events are noted.
    fn receive(&mut self) -> Value {
        let message = self.messages.recv_timeout(TIMEOUT).expect("the browser answers");
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Page.loadEventFired" => self.loaded = true,
            "Runtime.exceptionThrown" => self.console.push(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" => self.console.push(params["args"].to_string()),
            "Log.entryAdded" => self.console.push(params["entry"].to_string()),
            _ => {}
        }
        message
    }

    /// Open an address and wait until it is loaded.
    pub(crate) fn open(&mut self, address: &str) {
        self.loaded = false;
        self.call("Page.navigate", json!({"url": address}));
        while !self.loaded {
            self.receive();
        }
    }

    /// The width of the page in CSS pixels.
    pub(crate) fn width(&mut self, width: u32) {
        let metrics = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// What the user prefers.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// The value of an expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let result = self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Click on the middle of the element that an expression names.
    pub(crate) fn click(&mut self, element: &str) {
        let place = self.value(&format!(
            "(() => {{ const node = {element}; node.scrollIntoView({{block: 'center', behavior: 'instant'}}); \
             const box = node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let count = u8::from(kind != "mouseMoved");
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": place[0], "y": place[1], "button": button, "clickCount": count}),
            );
        }
    }

    /// Press and release a key on what has the focus.
    pub(crate) fn press(&mut self, key: &str, code: u32) {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            self.call(
                "Input.dispatchKeyEvent",
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}),
            );
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends when its pipe is closed; a browser that does not would outlive the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
