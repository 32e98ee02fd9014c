use std::fs;

use super::*;

/// The findings in a crate of these files.
fn findings(files: &[(&str, &str)]) -> Vec<String> {
    findings_in_order(files, &[])
}

/// The findings in a crate of these files whose folders have this order.
fn findings_in_order(files: &[(&str, &str)], order: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    findings_of(&folder.path().join("lib.rs"), order).unwrap()
}

#[test]
fn modules_that_import_downwards_are_clean() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::A; pub use b::*;"),
        ("a.rs", "use crate::b::{self, B}; pub struct A(B); fn f() { b::g() }"),
        ("b.rs", "mod inner; use inner::C; pub struct B(C); pub fn g() { inner::h(); }"),
        ("b/inner.rs", "pub struct C; pub fn h() {}"),
    ];
    assert_eq!(findings(&files), Vec::<String>::new());
}

#[test]
fn siblings_in_a_circle_are_named_with_their_imports() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "use super::c::C; pub struct B(C);"),
        ("c.rs", "pub struct C; fn f() -> usize { size_of::<crate::a::A>() }"),
    ];
    assert_eq!(
        findings(&files),
        [
            "circle of a, b, c",
            "  a imports b::B from b",
            "  b imports c::C from c",
            "  c imports a::A from a"
        ]
    );
}

#[test]
fn a_parent_and_its_child_are_a_circle_however_the_parent_names_it() {
    let child = ("a/child.rs", "use super::Shared; pub struct Child; pub fn make(_: Shared) {}");
    for parent in [
        "mod child; pub struct Shared; use child::Child;",
        "mod child; pub struct Shared; use self::child::Child;",
        "mod child; pub struct Shared; fn f() { child::make(Shared) }",
        "mod child; pub struct Shared; fn f() { print!(\"{}\", child::make(Shared)) }",
        "mod child; pub struct Shared; mod inline { use super::child::Child; }",
        // A re-export whose name the parent uses itself.
        "mod child; pub struct Shared; pub use child::Child; struct Other(Child);",
    ] {
        let found = findings(&[("lib.rs", "mod a;"), ("a.rs", parent), child]);
        assert_eq!(found.first().map(String::as_str), Some("circle of a, a::child"), "{parent}");
    }
    let parent = "mod child; pub struct Shared; pub use child::Child;";
    assert_eq!(findings(&[("lib.rs", "mod a;"), ("a.rs", parent), child]), Vec::<String>::new());
}

#[test]
fn an_item_that_another_module_owns_is_not_imported_through_the_root() {
    let lib = "mod a; mod b; pub use a::inner::A;";
    let a = [("a.rs", "pub mod inner;"), ("a/inner.rs", "pub struct A;")];
    for b in [
        "use crate::A;",
        "use crate::{A, a};",
        "use super::A;",
        "fn f(_: &crate::A) {}",
        "use super::A as Other;",
    ] {
        let found = findings(&[("lib.rs", lib), a[0], a[1], ("b.rs", b)]);
        assert_eq!(found, ["b imports crate::A: import crate::a::inner::A"], "{b}");
    }
    for b in ["use crate::a::inner::A;", "use crate::a;", "/// See [`crate::A`].\nstruct B;"] {
        assert_eq!(findings(&[("lib.rs", lib), a[0], a[1], ("b.rs", b)]), Vec::<String>::new(), "{b}");
    }
}

#[test]
fn tests_may_import_anything() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::A;"),
        ("a.rs", "pub struct A; #[cfg(test)] mod circle { use crate::b::B; } #[cfg(test)] use crate::b::B;"),
        ("b.rs", "use crate::a::A; pub struct B(A); #[cfg(test)] mod tests;"),
        ("b/tests.rs", "use crate::A;"),
    ];
    assert_eq!(findings(&files), Vec::<String>::new());
}

#[test]
fn both_variants_of_a_module_count() {
    let lib = "#[cfg(unix)] mod a; #[cfg(not(unix))] #[path = \"other.rs\"] mod a; mod b;";
    let files =
        [("lib.rs", lib), ("a.rs", ""), ("other.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")];
    assert_eq!(findings(&files).first().map(String::as_str), Some("circle of a, b"));
}

#[test]
fn a_module_without_a_file_and_no_rust_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let lib = folder.path().join("lib.rs");
    let error = |text: &str| {
        fs::write(&lib, text).unwrap();
        findings_of(&lib, &[]).unwrap_err().to_string()
    };
    assert!(error("mod missing;").ends_with("lib.rs: no file for `mod missing`"));
    let error = error("mod 1;");
    assert!(error.contains("lib.rs: "), "{error}");
}

/// A parent chooses what its child takes for `sync`, so that a test can choose something else.
#[test]
fn what_a_parent_has_imported_is_its_owners() {
    let lib = "mod a; mod b;";
    let child = |text| ("a/child.rs", text);
    let parent = "mod child; use std::sync; use crate::b::B; use self::child::Child;";
    let files = |text| [("lib.rs", lib), ("a.rs", parent), child(text), ("b.rs", "pub struct B;")];
    for text in
        ["use super::sync::Mutex;", "use super::sync;", "use super::B;", "fn f() { super::sync::f() }"]
    {
        assert_eq!(findings(&files(text)), Vec::<String>::new(), "{text}");
    }
    let found = findings(&files("use super::own;"));
    assert_eq!(found.first().map(String::as_str), Some("circle of a, a::child"));
    let circle =
        [("lib.rs", lib), ("a.rs", parent), child("use super::B;"), ("b.rs", "use crate::a::child::C;")];
    assert_eq!(findings(&circle).first().map(String::as_str), Some("circle of a::child, b"));
}

/// An upward import need not be part of a circle.
#[test]
fn a_folder_imports_those_left_of_it_alone() {
    let upward = |low: &str, inner: &str| {
        let low = format!("mod inner; {low}");
        let files = [
            ("lib.rs", "mod low; mod middle; mod high; pub use high::High;"),
            ("low.rs", &*low),
            ("low/inner.rs", inner),
            ("middle.rs", "use crate::low::Low;"),
            ("high.rs", "pub struct High; pub struct Higher(High);"),
        ];
        let order = ["low", "middle", "high"];
        let mut found = findings_in_order(&files, &order);
        let suffix = format!(", against the order {}", order.join(" <- "));
        for finding in &mut found {
            let text = finding.strip_suffix(&suffix).unwrap();
            *finding = text[text.find("low").unwrap()..].to_owned();
        }
        found
    };
    let none = Vec::<String>::new();
    assert_eq!(upward("", "pub struct Low;"), none);
    assert_eq!(upward("", "use crate::middle::A;"), ["low/inner.rs imports middle::A"]);
    for (before, member, after) in [
        ("", "use crate::high::High;", ""),
        ("", "enum E { A(crate::high::High) }", ""),
        ("", "trait T { fn f(_: crate::high::High); }", ""),
        ("", "type A = crate::high::High;", ""),
        ("", "union U { a: crate::high::High }", ""),
        ("impl Low {", "fn f(_: crate::high::High) {}", "}"),
        ("impl Low {", "const C: usize = size_of::<crate::high::High>();", "}"),
        ("trait T {", "fn f(_: crate::high::High);", "}"),
        ("struct S {", "field: crate::high::High", "}"),
        ("enum E {", "A(crate::high::High)", "}"),
    ] {
        let seeded = format!("{before} {member} {after}");
        assert_eq!(upward(&seeded, ""), ["low.rs imports high::High"], "{seeded}");
        let tests = format!("{before} #[cfg(test)] {member} {after}");
        assert_eq!(upward(&tests, ""), none, "{tests}");
    }
    let files = [("lib.rs", "mod low; mod new;"), ("low.rs", ""), ("new.rs", "")];
    assert_eq!(findings_in_order(&files, &["low"]), ["new has no place in the order low"]);
}
