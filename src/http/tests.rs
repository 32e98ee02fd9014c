//! Clients, hostile ones among them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::*;

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// For what never comes.
const LONG: Duration = Duration::from_secs(120);
/// No client of a test is late, on a busy host either.
const PATIENT: Times =
    Times { request: Duration::from_secs(10_000), response: Duration::from_secs(10_000), ..TIMES };

/// A server of this text.
fn server(text: impl Fn() -> Option<String> + Send + 'static) -> SocketAddr {
    server_within(PATIENT, text)
}

fn server_within(times: Times, text: impl Fn() -> Option<String> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let text = Box::new(move || text().map(Arc::from));
    serve_within(times, listener.into(), "test", Page { path: "/metrics", kind: "text/x-test", text })
        .unwrap();
    address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// The response to these bytes, as far as it arrives if the server closes the connection before it has read all of them.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    let _ = stream.write_all(request);
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response);
    response
}

#[test]
fn requests_are_answered_by_their_method_and_path() {
    let address = server(|| Some("a 1\n# EOF\n".to_owned()));
    let response = ask(address, GET);
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("Content-Type: text/x-test\r\n") && head.contains("Content-Length: 10\r\n"),
        "{head}"
    );
    assert!(head.contains("\r\nConnection: close"), "{head}");
    assert_eq!(body, "a 1\n# EOF\n");
    let head_only = ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head_only.contains("Content-Length: 10\r\n") && head_only.ends_with("\r\n\r\n"), "{head_only}");
    for (request, status) in [
        (&b"GET /metrics?name=a HTTP/1.0\r\n\r\n"[..], 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/.. HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"\xff\0 / HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
    ] {
        let response = ask(address, request);
        let expected = format!("HTTP/1.1 {status} ");
        assert!(response.starts_with(&expected), "{:?}: {response}", String::from_utf8_lossy(request));
    }
    let address = server(|| None);
    assert!(ask(address, GET).starts_with("HTTP/1.1 503 "));
}

#[test]
fn a_request_in_pieces_and_a_response_in_pieces_arrive_whole() {
    // More than the buffers of a connection hold.
    let long = "x 1\n".repeat(4 << 20);
    let body = long.clone();
    let address = server(move || Some(long.clone()));
    let mut stream = connect(address);
    for byte in GET {
        stream.write_all(&[*byte]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(200));
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.split_once("\r\n\r\n").unwrap().1 == body);
}

#[test]
fn clients_that_say_nothing_or_too_much_do_not_keep_others_out() {
    let address = server(|| Some("# EOF\n".to_owned()));
    let served = || ask(address, GET).ends_with("# EOF\n");
    // More than there are places, all silent; some have begun.
    let mut silent: Vec<_> = (0..3 * CONNECTIONS).map(|_| connect(address)).collect();
    silent.iter_mut().step_by(2).for_each(|stream| stream.write_all(b"GET /met").unwrap());
    assert!(served());
    // The server has closed those that others have replaced.
    assert_eq!(silent[0].read(&mut [0; 8]).unwrap_or(0), 0);
    // A request without an end.
    let begin = Instant::now();
    let mut endless = connect(address);
    while endless.write(&[b'x'; 1024]).is_ok_and(|length| length > 0) {
        assert!(begin.elapsed() < LONG, "it is never cut off");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(served());
}

#[test]
fn no_phase_takes_longer_than_its_time() {
    let time = Duration::from_millis(500);
    let times = Times { request: time, response: time, close: time };
    let address = server_within(times, || Some("x 1\n".repeat(4 << 20)));
    let begin = Instant::now();
    // A byte in time does not prolong the time.
    let mut slow = connect(address);
    let mut bytes = 0;
    while slow.write_all(b"G").is_ok() && begin.elapsed() < LONG {
        bytes += 1;
        thread::sleep(Duration::from_millis(25));
    }
    let took = begin.elapsed();
    assert!(took >= time && took < LONG, "{took:?} for {bytes} bytes");
    // One that takes no response.
    let mut deaf = connect(address);
    deaf.write_all(GET).unwrap();
    let begin = Instant::now();
    while is_connected(address, &deaf) {
        assert!(begin.elapsed() < LONG, "the server waits for the client");
        thread::sleep(Duration::from_millis(5));
    }
    // What had been sent is there, and then the connection is over.
    let mut rest = Vec::new();
    let _ = deaf.read_to_end(&mut rest);
    assert!(rest.len() < 4 << 22, "{} bytes", rest.len());
}

/// Whether the server has its end of a connection open: proc_net_tcp(5). The client does not see that while it has not received all.
fn is_connected(server: SocketAddr, client: &TcpStream) -> bool {
    const ESTABLISHED: &str = "01";
    let [server, client] = [server.port(), client.local_addr().unwrap().port()];
    let ports = [server, client].map(|port| Some(format!(":{port:04X}")));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>()).any(|fields| {
        let port = |field: &str| field.find(':').map(|at| field[at..].to_owned());
        ports == [port(fields[0]), port(fields[1])] && fields[2] == ESTABLISHED
    })
}
