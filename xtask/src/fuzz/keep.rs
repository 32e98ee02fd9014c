//! Selects inputs for `fuzz/seeds`: few and small, and together with most of the coverage of the corpus.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::build::Built;
use super::target::{Home, MERGE, command, seeds, wait};

/// Maximum number of a target's seeds.
const MOST: usize = 60;
/// Maximum length in bytes of a seed.
const LONGEST: u64 = 4096;
/// Maximum length in bytes of a target's seeds together.
const TOTAL: u64 = 80 << 10;

/// An input and what it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Input {
    path: PathBuf,
    len: u64,
    edges: BTreeSet<u32>,
}

impl Input {
    /// Whether a person has named it. libFuzzer takes the hash of the content.
    fn is_named(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        name.len() != 40 || !name.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// Replace a target's seeds by a selection of its seeds and corpus. A seed that a person has named stays. What the selection covers.
///
/// # Errors
/// The fuzzer fails, or the files cannot be copied.
pub(super) fn keep(built: &Built, name: &str) -> Result<String, String> {
    let home = Home::new(name)?;
    let seeds = seeds(name);
    let error = |error: io::Error| format!("{name}: {error}");
    fs::create_dir_all(&seeds).map_err(error)?;
    let inputs = coverage(built, name, &[&seeds, &home.corpus()])?;
    let all: BTreeSet<u32> = inputs.iter().flat_map(|input| &input.edges).copied().collect();
    let count = inputs.len();
    let chosen = choose(inputs, &seeds);
    for entry in fs::read_dir(&seeds).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if chosen.iter().all(|input| input.path != path) {
            fs::remove_file(&path).map_err(error)?;
        }
    }
    for input in chosen.iter().filter(|input| !input.path.starts_with(&seeds)) {
        fs::copy(&input.path, seeds.join(input.path.file_name().unwrap_or_default())).map_err(error)?;
    }
    let covered: BTreeSet<u32> = chosen.iter().flat_map(|input| &input.edges).copied().collect();
    let bytes: u64 = chosen.iter().map(|input| input.len).sum();
    Ok(format!(
        "kept {} of {count} inputs, {bytes} bytes: {} of {} edges",
        chosen.len(),
        covered.len(),
        all.len()
    ))
}

/// The coverage of all inputs in these folders: libFuzzer's merge writes it into a file.
fn coverage(built: &Built, name: &str, folders: &[&Path]) -> Result<Vec<Input>, String> {
    let error = |error: io::Error| format!("{name}: {error}");
    let folder = tempfile::tempdir().map_err(error)?;
    let (control, merged) = (folder.path().join("control"), folder.path().join("merged"));
    fs::create_dir(&merged).map_err(error)?;
    let mut command = command(built, name);
    // All edges of each input, without the numbers of times that they are taken.
    command.args(["-merge=1", "-set_cover_merge=1", "-use_counters=0"]);
    command.arg(format!("-merge_control_file={}", control.display())).arg(merged).args(folders);
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    match wait(command.spawn().map_err(error)?, MERGE).map_err(error)? {
        Some(status) if status.success() => {}
        Some(status) => return Err(format!("{name}: merge: {status}")),
        None => return Err(format!("{name}: a merge takes longer than {} s", MERGE.as_secs())),
    }
    let text = fs::read_to_string(control).map_err(error)?;
    parse(&text)
        .into_iter()
        .map(|(path, edges)| Ok(Input { len: path.metadata()?.len(), path, edges }))
        .collect::<Result<_, _>>()
        .map_err(error)
}

/// Paths and edges in a control file: the number of files, that of the first corpus, the paths, then `FT`, a file's index and its edges.
fn parse(text: &str) -> Vec<(PathBuf, BTreeSet<u32>)> {
    let mut lines = text.lines();
    let count = lines.next().and_then(|line| line.parse().ok()).unwrap_or(0);
    let mut files: Vec<_> =
        lines.by_ref().skip(1).take(count).map(|path| (PathBuf::from(path), BTreeSet::new())).collect();
    for line in lines {
        let mut numbers =
            line.strip_prefix("FT ").unwrap_or_default().split(' ').map_while(|word| word.parse().ok());
        if let Some((_, edges)) = numbers.next().and_then(|index: u32| files.get_mut(index as usize)) {
            edges.extend(numbers);
        }
    }
    files
}

/// Those that a person has named; then again and again the input with most edges that none before has, among these a seed, among these
/// the shortest.
fn choose(inputs: Vec<Input>, seeds: &Path) -> Vec<Input> {
    let (mut chosen, mut others): (Vec<_>, Vec<_>) =
        inputs.into_iter().partition(|input| input.path.starts_with(seeds) && input.is_named());
    let mut covered: BTreeSet<u32> = chosen.iter().flat_map(|input| &input.edges).copied().collect();
    let mut space = TOTAL.saturating_sub(chosen.iter().map(|input| input.len).sum());
    while chosen.len() < MOST {
        for input in &mut others {
            input.edges.retain(|edge| !covered.contains(edge));
        }
        others.retain(|input| !input.edges.is_empty() && input.len <= LONGEST.min(space));
        let order = |input: &&Input| (input.edges.len(), input.path.starts_with(seeds), Reverse(input.len));
        let Some(best) = others.iter().max_by_key(order).cloned() else { break };
        covered.extend(&best.edges);
        space -= best.len;
        chosen.push(best);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_file() {
        let text = "3\n1\n/a/b c\n/d\n/e\nSTARTED 0 5\nFT 0 7 9\nCOV 0 1\nSTARTED 2 1\nFT 2\nCOV 2\n";
        let expected = [("/a/b c", &[7, 9][..]), ("/d", &[]), ("/e", &[])];
        assert_eq!(parse(text), expected.map(|(path, edges)| (path.into(), edges.iter().copied().collect())));
        assert_eq!(parse(""), []);
    }

    fn input(path: &str, len: u64, edges: &[u32]) -> Input {
        Input { path: path.into(), len, edges: edges.iter().copied().collect() }
    }

    fn chosen(inputs: &[Input]) -> Vec<String> {
        let chosen = choose(inputs.to_vec(), Path::new("seeds"));
        chosen.iter().map(|input| input.path.display().to_string()).collect()
    }

    #[test]
    fn few_inputs_cover_all() {
        let hash = "seeds/0123456789abcdef0123456789abcdef01234567";
        let inputs = [
            input("corpus/named", 9, &[1, 2]),
            input("seeds/named", 5000, &[1]),
            input("corpus/long", 9, &[2, 3, 4]),
            input("corpus/short", 8, &[2, 3, 4]),
            input("corpus/other", 8, &[4, 5]),
            input(hash, 9, &[5]),
            input("corpus/too long", LONGEST + 1, &[6]),
        ];
        // What a person has named stays whatever its length is.
        assert_eq!(chosen(&inputs), ["seeds/named", "corpus/short", hash]);
    }

    #[test]
    fn seeds_are_bounded() {
        let of = |len| (0..100).map(|n| input(&n.to_string(), len, &[n])).collect::<Vec<_>>();
        assert_eq!(chosen(&of(1)).len(), MOST);
        assert_eq!(chosen(&of(LONGEST)).len() as u64, TOTAL / LONGEST);
    }
}
