//! Tells the build scripts of packages that depend on this one where its sources are: they compile it for guests.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("Cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::metadata=source={folder}/src");
}
