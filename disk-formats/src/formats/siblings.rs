//! A test driver for families of images: after any command, even an interrupted one, each image reads as before or is
//! refused. The formats' `siblings_tests` use it.
//!
//! A family has five images: a root, a parent over it, a child and a sibling over the parent, and a grandchild over the
//! child. Random commands run one after the other. Each is interrupted at random moments by the end of the process, by
//! a power failure, or by a failing file. The next command starts from one of the resulting states.

use crate::host::crash::{CrashFile, Image};
use crate::queue::conformance::Random;

/// The tools of a format, over recorded files.
pub(crate) trait Tools {
    /// Create an image over the chain `below`. Each image has another number.
    fn create(&self, number: u64, below: &[CrashFile]) -> Image;

    /// The values at all places, or the reason why the chain (from the top down) is refused.
    fn read(&self, chain: &[CrashFile]) -> Result<Vec<u64>, String>;

    /// Open the chain, write values to places, and close it.
    fn write(&self, chain: &[CrashFile], values: &[(u64, u64)], flush: bool) -> Result<(), String>;

    /// Merge the first image into the second, without deleting it.
    fn merge(&self, chain: &[CrashFile]) -> Result<(), String>;

    /// Make the second image the parent of the first, whatever the first's parent was.
    fn rebase(&self, chain: &[CrashFile]) -> Result<(), String>;

    /// Resize, compact or repair.
    fn maintain(&self, chain: &[CrashFile], what: u64) -> Result<(), String>;

    /// Number of places.
    fn places(&self) -> u64;
}

/// Initial parent of each member.
const PARENTS: [Option<usize>; 5] = [None, Some(0), Some(1), Some(1), Some(2)];
/// Number of states that are checked after each command.
const STATES: u64 = 12;

struct Member {
    image: Image,
    parent: Option<usize>,
    /// The values that it reads if it opens.
    expected: Vec<u64>,
}

/// Counts of what was checked.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Images that read as before, in the states after a command.
    pub(crate) good: u64,
    /// Images that were refused.
    pub(crate) refused: u64,
    /// Completed merges.
    pub(crate) merged: u64,
}

struct Family<'a, T> {
    tools: &'a T,
    /// `None`: merged, or its chain is lost.
    members: Vec<Option<Member>>,
    random: Random,
    next: u64,
    seen: Seen,
}

/// A command, and its image.
#[derive(Clone, Copy, Debug)]
enum Command {
    Write(usize),
    Merge(usize),
    Maintain(usize, u64),
}

impl Command {
    /// The image whose content may change.
    fn changes(self, parent: Option<usize>) -> Option<usize> {
        match self {
            Self::Write(target) => Some(target),
            Self::Merge(_) => parent,
            Self::Maintain(..) => None,
        }
    }
}

/// Run random commands on families of images.
pub(crate) fn families<T: Tools>(tools: &T, seeds: std::ops::Range<u64>, commands: u64) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds {
        let mut family = Family::new(tools, seed);
        for number in 0..commands {
            family.step(&format!("family {seed}, command {number}"));
        }
        seen.good += family.seen.good;
        seen.refused += family.seen.refused;
        seen.merged += family.seen.merged;
    }
    seen
}

impl<'a, T: Tools> Family<'a, T> {
    fn new(tools: &'a T, seed: u64) -> Self {
        let mut family = Family {
            tools,
            members: Vec::new(),
            random: Random(seed * 2 + 1),
            next: seed << 32,
            seen: Seen::default(),
        };
        for (number, parent) in PARENTS.into_iter().enumerate() {
            let images = family.images();
            let below: Vec<CrashFile> = parent
                .map(|parent| family.line(parent))
                .unwrap_or_default()
                .into_iter()
                .map(|at| images[at].clone())
                .collect();
            let file = CrashFile::of(tools.create(seed * 8 + number as u64, &below));
            let chain = [vec![file.clone()], below].concat();
            let values = family.values(6);
            tools.write(&chain, &values, true).expect("a write");
            let expected = tools.read(&chain).expect("a chain");
            family.members.push(Some(Member { image: file.image(), parent, expected }));
        }
        family
    }

    /// The chain of a member, down to the root.
    fn line(&self, top: usize) -> Vec<usize> {
        let below = |at: &usize| self.members[*at].as_ref().and_then(|member| member.parent);
        std::iter::successors(Some(top), below).collect()
    }

    /// Whether the member and all its parents exist.
    fn whole(&self, top: usize) -> bool {
        self.line(top).into_iter().all(|at| self.members[at].is_some())
    }

    fn images(&self) -> Vec<CrashFile> {
        let empty = Image::default();
        CrashFile::together(
            self.members.iter().map(|member| member.as_ref().map_or(&empty, |member| &member.image)),
        )
    }

    fn chain(&self, files: &[CrashFile], top: usize) -> Vec<CrashFile> {
        self.line(top).into_iter().map(|at| files[at].clone()).collect()
    }

    fn values(&mut self, most: u64) -> Vec<(u64, u64)> {
        (0..1 + self.random.below(most))
            .map(|_| {
                self.next += 1;
                (self.random.below(self.tools.places()), self.next)
            })
            .collect()
    }

    fn command(&mut self) -> Command {
        loop {
            let target = self.random.below(self.members.len() as u64) as usize;
            if !self.whole(target) {
                continue;
            }
            return match self.random.below(6) {
                0..2 => Command::Write(target),
                2..4 if target > 0 => Command::Merge(target),
                2..4 => continue,
                _ => Command::Maintain(target, self.random.below(4)),
            };
        }
    }

    fn step(&mut self, place: &str) {
        let command = self.command();
        let files = self.images();
        let (target, done) = match command {
            Command::Write(target) | Command::Merge(target) | Command::Maintain(target, _) => {
                (target, self.chain(&files, target))
            }
        };
        if self.tools.read(&done).is_err() {
            // The chain is broken: it cannot be opened.
            return;
        }
        if self.random.below(3) == 0 {
            let failing = self.random.below(files.len() as u64) as usize;
            files[failing].fail(Some(self.random.below(24)));
        }
        let values = self.values(12);
        let flush = self.random.below(2) == 0;
        let ended = match command {
            Command::Write(_) => self.tools.write(&done, &values, flush),
            Command::Merge(_) => self.tools.merge(&done),
            Command::Maintain(_, what) => self.tools.maintain(&done, what),
        };
        let place = format!("{place}, {command:?} ({ended:?})");
        let parent = self.members[target].as_ref().and_then(|member| member.parent);
        let changed = command.changes(parent);
        let end = files[0].time();
        let mut left = Vec::new();
        for state in 0..=STATES {
            // State 0 is after the whole command. Then come states after an end of the process, then states after a
            // power failure.
            let time = if state == 0 { end } else { self.random.below(end + 1) };
            left = self.left(&files, time, state > STATES / 2);
            self.look(
                &left,
                target,
                changed,
                matches!(command, Command::Merge(_)),
                &format!("{place}, state {state} at {time} of {end}"),
            );
        }
        if matches!(command, Command::Merge(_)) && ended.is_ok() && self.random.below(2) == 0 {
            left = self.left(&files, end, false);
            self.take(&left, changed);
            return self.merged(target, parent, &place);
        }
        self.take(&left, changed);
    }

    /// The content of each file after an end of the process or a power failure at `time`.
    fn left(&mut self, files: &[CrashFile], time: u64, power: bool) -> Vec<Image> {
        let mut left = Vec::new();
        for (file, member) in files.iter().zip(&self.members) {
            let base = member.as_ref().map_or_else(Image::default, |member| member.image.clone());
            let random = &mut self.random;
            left.push(file.left_at(&base, time, || !power || random.below(2) == 0));
        }
        left
    }

    /// Check that each image reads as before, or is refused.
    fn look(&mut self, left: &[Image], target: usize, changed: Option<usize>, merge: bool, place: &str) {
        let files = CrashFile::together(left);
        let whole: Vec<usize> = (0..self.members.len()).filter(|number| self.whole(*number)).collect();
        for number in whole {
            let found = self.tools.read(&self.chain(&files, number));
            let expected = self.members[number].as_ref().map(|member| &member.expected);
            match found {
                Ok(_) if Some(number) == changed => {}
                Ok(found) => {
                    assert!(Some(&found) == expected, "{place}: image {number} reads otherwise");
                    self.seen.good += 1;
                }
                Err(why) => {
                    assert!(number != target, "{place}: the image itself is refused: {why}");
                    assert!(!merge || Some(number) != changed, "{place}: the parent is refused: {why}");
                    self.seen.refused += 1;
                }
            }
        }
    }

    /// Continue from this state.
    fn take(&mut self, left: &[Image], changed: Option<usize>) {
        for (member, image) in self.members.iter_mut().zip(left) {
            if let Some(member) = member {
                member.image = image.clone();
            }
        }
        if let Some(changed) = changed {
            let files = self.images();
            let found = self.tools.read(&self.chain(&files, changed)).expect("it was read before");
            if let Some(member) = &mut self.members[changed] {
                member.expected = found;
            }
        }
    }

    /// The child is deleted, and its children get its parent.
    fn merged(&mut self, child: usize, parent: Option<usize>, place: &str) {
        self.seen.merged += 1;
        let files = self.images();
        for number in 0..self.members.len() {
            let above = self.members[number].as_ref().is_some_and(|member| member.parent == Some(child));
            if above && self.tools.read(&self.chain(&files, number)).is_err() {
                // It was created over an earlier state of the child, which no longer exists.
                self.members[number] = None;
            }
        }
        let (Some(gone), Some(parent)) = (self.members[child].take(), parent) else { return };
        let found = self.members[parent].as_ref().map(|member| &member.expected);
        assert!(found == Some(&gone.expected), "{place}: the parent is not what the child was");
        let files = self.images();
        for (number, file) in files.iter().enumerate() {
            if let Some(member) = self.members[number].as_mut().filter(|member| member.parent == Some(child))
            {
                member.parent = Some(parent);
                let chain = self.chain(&files, number);
                self.tools.rebase(&chain).unwrap_or_else(|why| panic!("{place}: {why}"));
                if let Some(member) = &mut self.members[number] {
                    member.image = file.image();
                }
            }
        }
    }
}
