//! The modules of a crate and what they import, parsed with `syn`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, Field, ImplItem, Item, ItemMod, ItemUse, Lit, Macro, Meta, Token, TraitItem, UseTree,
    Variant, Visibility,
};

use super::graph::Edges;

/// Names of modules that are of tests, whatever their attributes.
const TESTS: [&str; 2] = ["tests", "testing"];

/// A file of the crate cannot be parsed.
#[derive(Debug)]
pub(super) enum SourceError {
    /// The file cannot be read.
    Read(PathBuf, io::Error),
    /// It is no Rust.
    Parse(PathBuf, syn::Error),
    /// None of the files that a `mod` may mean is there.
    NoModule(PathBuf, String),
}

impl std::fmt::Display for SourceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Parse(path, error) => write!(f, "{}: {error}", path.display()),
            Self::NoModule(path, name) => write!(f, "{}: no file for `mod {name}`", path.display()),
        }
    }
}

/// Names of modules from the root of the crate, which has none.
type ModulePath = Vec<String>;

/// What a private `use` has brought into a module, by the path that its submodules may use: the path of the item, if the crate owns it.
type Aliases = BTreeMap<ModulePath, Option<ModulePath>>;

/// The path of an item at its owner, if the crate owns it.
fn owned(mut path: ModulePath, aliases: &Aliases) -> Option<ModulePath> {
    // An alias may lead to another one; `use` in a circle does not compile.
    for _ in 0..aliases.len() {
        let alias = (1..=path.len()).find_map(|len| Some((len, aliases.get(path.get(..len)?)?)));
        let Some((len, target)) = alias else { break };
        path = target.iter().flatten().chain(path.get(len..)?).cloned().collect();
        target.as_ref()?;
    }
    Some(path)
}

/// A path in the source, from the root of the crate to an item or a module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Import {
    /// The file that has it.
    from: usize,
    path: ModulePath,
}

/// The modules of a crate.
#[derive(Debug, Default)]
pub(super) struct Crate {
    /// The path of each file's module; the first is the root.
    files: Vec<ModulePath>,
    /// The path of each file.
    paths: Vec<PathBuf>,
    /// The file of each module.
    modules: BTreeMap<ModulePath, usize>,
    imports: BTreeSet<Import>,
    /// Names that the root re-exports, and the paths of the items.
    reexports: BTreeMap<String, ModulePath>,
}

impl Crate {
    /// Parse the file of the root and those of its modules.
    pub(super) fn read(root: &Path) -> Result<Self, SourceError> {
        let mut files = Vec::new();
        read_file(root, Vec::new(), true, &mut files)?;
        let mut source = Self::default();
        for file in &files {
            // Variants of a module by `cfg` are one node: that of the last.
            let index = source.files.len();
            source.files.push(file.module.clone());
            source.paths.push(file.path.clone());
            source.modules.insert(file.module.clone(), index);
            inline_modules(&file.items, &file.module, index, &mut source.modules);
        }
        let mut aliases = Aliases::new();
        for file in &files {
            let from = source.modules.get(&file.module).copied().unwrap_or_default();
            let mut visitor = Paths::new(&source.modules, file.module.clone());
            visitor.items(&file.items);
            source.imports.extend(visitor.found.into_iter().map(|path| Import { from, path }));
            aliases.append(&mut visitor.aliases);
            if file.module.is_empty() {
                source.reexports = visitor.reexports;
            }
        }
        source.imports = source
            .imports
            .into_iter()
            .filter_map(|Import { from, path }| Some(Import { from, path: owned(path, &aliases)? }))
            .collect();
        Ok(source)
    }

    /// The name of a file's module.
    pub(super) fn name(&self, file: usize) -> String {
        match self.files.get(file) {
            Some(path) if !path.is_empty() => path.join("::"),
            _ => "the root".to_owned(),
        }
    }

    pub(super) fn edges(&self) -> Edges {
        let mut edges = vec![BTreeSet::new(); self.files.len()];
        for import in &self.imports {
            let to = self.file_of(&import.path);
            if let Some(edges) = edges.get_mut(import.from).filter(|_| to != import.from) {
                edges.insert(to);
            }
        }
        edges
    }

    /// Each import from one of these files into another.
    pub(super) fn edges_within<'a>(
        &'a self,
        circle: &'a BTreeSet<usize>,
    ) -> impl Iterator<Item = String> + 'a {
        self.imports.iter().filter_map(|import| {
            let to = self.file_of(&import.path);
            let within = to != import.from && circle.contains(&import.from) && circle.contains(&to);
            within.then(|| {
                format!(
                    "{} imports {} from {}",
                    self.name(import.from),
                    import.path.join("::"),
                    self.name(to)
                )
            })
        })
    }

    /// Each folder that is not in `order`, and each import from a folder that is not left of its own. A folder is a module of the root
    /// with its submodules. No order: nothing is checked.
    pub(super) fn upward(&self, order: &[&str]) -> Vec<String> {
        let place =
            |path: &[String]| order.iter().position(|folder| path.first().is_some_and(|name| name == folder));
        let order = order.join(" <- ");
        let unplaced =
            self.files.iter().filter(|file| !order.is_empty() && file.len() == 1 && place(file).is_none());
        let unplaced = unplaced.map(|file| format!("{} has no place in the order {order}", file.concat()));
        let upward = self.imports.iter().filter_map(|import| {
            // The root has the list of its modules, and re-exports.
            let upward = place(self.files.get(import.from)?)? < place(&import.path)?;
            let (path, name) = (import.path.join("::"), self.paths.get(import.from)?.display());
            upward.then(|| format!("{name} imports {path}, against the order {order}"))
        });
        unplaced.chain(upward).collect()
    }

    /// Each import from the root of an item that another module owns.
    pub(super) fn through_root(&self) -> Vec<String> {
        let finding = |import: &Import| {
            let name =
                import.path.first().filter(|name| !self.modules.contains_key(&vec![(*name).clone()]))?;
            let owner = self.reexports.get(name).filter(|_| import.from != 0)?;
            let from = self.name(import.from);
            Some(format!("{from} imports crate::{name}: import crate::{}", owner.join("::")))
        };
        self.imports.iter().filter_map(finding).collect()
    }

    /// The file of the innermost module of `path`.
    fn file_of(&self, path: &[String]) -> usize {
        let prefixes = (0..=path.len()).rev().filter_map(|len| path.get(..len));
        prefixes.filter_map(|prefix| self.modules.get(prefix)).next().copied().unwrap_or_default()
    }
}

/// A parsed file.
struct SourceFile {
    path: PathBuf,
    module: ModulePath,
    items: Vec<Item>,
}

/// Parse a file and those of its modules. `owns_folder`: the files of its modules are beside it, not in a folder with its name.
fn read_file(
    path: &Path,
    module: ModulePath,
    owns_folder: bool,
    files: &mut Vec<SourceFile>,
) -> Result<(), SourceError> {
    let text = fs::read_to_string(path).map_err(|error| SourceError::Read(path.to_owned(), error))?;
    let file = syn::parse_file(&text).map_err(|error| SourceError::Parse(path.to_owned(), error))?;
    let beside = path.parent().unwrap_or(Path::new(""));
    let folder = if owns_folder { beside.to_owned() } else { path.with_extension("") };
    let place = files.len();
    files.push(SourceFile { path: path.to_owned(), module: module.clone(), items: Vec::new() });
    read_modules(&file.items, path, &folder, &module, files)?;
    if let Some(parsed) = files.get_mut(place) {
        parsed.items = file.items;
    }
    Ok(())
}

/// Parse the files of the modules that `items` declare.
fn read_modules(
    items: &[Item],
    path: &Path,
    folder: &Path,
    module: &ModulePath,
    files: &mut Vec<SourceFile>,
) -> Result<(), SourceError> {
    for item in product_modules(items) {
        let name = item.ident.to_string();
        let inner = joined(module, &name);
        match (&item.content, path_attribute(&item.attrs)) {
            (Some((_, items)), _) => read_modules(items, path, &folder.join(&name), &inner, files)?,
            (None, Some(file)) => {
                let file = path.parent().unwrap_or(Path::new("")).join(file);
                read_file(&file, inner, false, files)?;
            }
            (None, None) => {
                let candidates = [
                    (folder.join(&name).with_extension("rs"), false),
                    (folder.join(&name).join("mod.rs"), true),
                ];
                let found = candidates.into_iter().find(|(file, _)| file.exists());
                let (file, owns_folder) =
                    found.ok_or_else(|| SourceError::NoModule(path.to_owned(), name.clone()))?;
                read_file(&file, inner, owns_folder, files)?;
            }
        }
    }
    Ok(())
}

/// Enter the inline modules of a file.
fn inline_modules(
    items: &[Item],
    module: &ModulePath,
    file: usize,
    modules: &mut BTreeMap<ModulePath, usize>,
) {
    for item in product_modules(items) {
        if let Some((_, items)) = &item.content {
            let inner = joined(module, &item.ident.to_string());
            modules.insert(inner.clone(), file);
            inline_modules(items, &inner, file, modules);
        }
    }
}

fn joined(module: &ModulePath, name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// Modules among `items` that are not of tests.
fn product_modules(items: &[Item]) -> impl Iterator<Item = &ItemMod> {
    items.iter().filter_map(|item| match item {
        Item::Mod(item) if !is_test(&item.attrs) && !TESTS.iter().any(|name| item.ident == name) => {
            Some(item)
        }
        _ => None,
    })
}

/// `#[cfg(test)]`, alone or with more conditions.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test")
        }
        _ => false,
    })
}

/// The file of `#[path = "file"]`.
fn path_attribute(attributes: &[Attribute]) -> Option<PathBuf> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(value) if value.path.is_ident("path") => match &value.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(file) => Some(file.value().into()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

/// Collects the paths of a file that lead to items of the crate.
struct Paths<'a> {
    modules: &'a BTreeMap<ModulePath, usize>,
    /// The module whose items are visited.
    module: ModulePath,
    found: BTreeSet<ModulePath>,
    /// Names that this module re-exports, and the paths of the items.
    reexports: BTreeMap<String, ModulePath>,
    aliases: Aliases,
}

impl<'a> Paths<'a> {
    const fn new(modules: &'a BTreeMap<ModulePath, usize>, module: ModulePath) -> Self {
        Self { modules, module, found: BTreeSet::new(), reexports: BTreeMap::new(), aliases: Aliases::new() }
    }

    /// Visit the items of a module: first its re-exports, as code uses their names.
    fn items(&mut self, items: &[Item]) {
        for item in items {
            if let Item::Use(item) = item
                && !is_test(&item.attrs)
                && !matches!(item.vis, Visibility::Inherited)
            {
                for (path, name) in use_paths(&item.tree) {
                    if let Some(path) = self.resolve(&path) {
                        self.reexports.insert(name, path);
                    }
                }
            }
        }
        for item in items {
            self.visit_item(item);
        }
    }

    /// A path from the root of the crate; `None`: it begins in another crate, or with a name that an earlier `use` has brought in.
    fn resolve(&self, path: &[String]) -> Option<ModulePath> {
        let mut base = self.module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = rest.get(1..)?;
            }
            "self" => rest = rest.get(1..)?,
            "super" => {}
            first if self.modules.contains_key(&joined(&base, first)) => {}
            first => {
                let known = self.reexports.get(first)?;
                return Some(known.iter().chain(path.get(1..)?).cloned().collect());
            }
        }
        while rest.first().is_some_and(|segment| segment == "super") {
            base.pop();
            rest = rest.get(1..)?;
        }
        Some(base.into_iter().chain(rest.iter().cloned()).collect())
    }

    fn find(&mut self, path: &[String]) {
        self.found.extend(self.resolve(path));
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::ForeignMod(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::TraitAlias(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Union(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Const(item) => &item.attrs,
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Macro(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        if !is_test(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        if !is_test(&variant.attrs) {
            visit::visit_variant(self, variant);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if let Some((_, items)) = &item.content
            && !TESTS.iter().any(|name| item.ident == name)
        {
            let mut inner = Paths::new(self.modules, joined(&self.module, &item.ident.to_string()));
            inner.items(items);
            self.found.append(&mut inner.found);
            self.aliases.append(&mut inner.aliases);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if matches!(item.vis, Visibility::Inherited) {
            for (path, name) in use_paths(&item.tree) {
                self.aliases.insert(joined(&self.module, &name), self.resolve(&path));
                self.find(&path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            // One segment alone is a local name, `self`, or what a `use` has brought in.
            if segments.len() > 1 || segments.first().is_some_and(|name| self.reexports.contains_key(name)) {
                self.find(&segments);
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    /// `pub(in path)` names who may use the item.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    /// Arguments as in `format!`: expressions. What else a macro takes is not looked at.
    fn visit_macro(&mut self, makro: &'ast Macro) {
        self.visit_path(&makro.path);
        if let Ok(arguments) = makro.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            let mut inner = Paths::new(self.modules, self.module.clone());
            inner.reexports.clone_from(&self.reexports);
            for argument in &arguments {
                inner.visit_expr(argument);
            }
            self.found.append(&mut inner.found);
        }
    }
}

/// The path of each item that a `use` names, and the name that it gets.
fn use_paths(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    match tree {
        UseTree::Path(path) => {
            let name = path.ident.to_string();
            let inner = use_paths(&path.tree).into_iter();
            inner.map(|(path, last)| prefixed(&name, path, last)).collect()
        }
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        UseTree::Rename(rename) => vec![(vec![rename.ident.to_string()], rename.rename.to_string())],
        UseTree::Glob(_) => vec![(Vec::new(), "*".to_owned())],
        UseTree::Group(group) => group.items.iter().flat_map(use_paths).collect(),
    }
}

/// `prefix` before the path of an item; `a::{self}` is `a`.
fn prefixed(prefix: &str, mut path: Vec<String>, name: String) -> (Vec<String>, String) {
    let name = if name == "self" { prefix.to_owned() } else { name };
    if path.len() == 1 && path.first().is_some_and(|segment| segment == "self") {
        path.clear();
    }
    path.insert(0, prefix.to_owned());
    (path, name)
}
