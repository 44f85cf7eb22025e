//! Calls between the files of a shard go down: see the table in `src/shard/mod.rs`.

#![expect(
    clippy::disallowed_methods,
    reason = "the files here are source code, not devices"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::visit::{Visit, visit_expr_call, visit_expr_method_call};
use syn::{Expr, ImplItem, Item, ItemImpl, Type};

/// The folder of the shard.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/shard")
}

/// The files with methods of the shard, from the top: the second table of the module's documentation.
fn layers(documentation: &str) -> Vec<String> {
    let (_, table) = documentation
        .split_once("//! | file | methods |")
        .expect("the table is there");
    table
        .lines()
        .skip(2)
        .map_while(|line| line.strip_prefix("//! | `"))
        .map(|row| row.split_once('`').expect("a file").0.to_owned())
        .collect()
}

/// The source files below a folder, by their path without the ending.
fn sources(folder: &Path, prefix: &str, found: &mut BTreeMap<String, syn::File>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .expect("plain names");
        if path.is_dir() {
            sources(&path, &format!("{prefix}{name}/"), found);
        } else {
            let text = std::fs::read_to_string(&path).expect("readable");
            let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.insert(format!("{prefix}{name}"), file);
        }
    }
}

/// The implementations of the shard's own methods.
fn of_shard(file: &syn::File) -> impl Iterator<Item = &ItemImpl> {
    file.items.iter().filter_map(|item| match item {
        Item::Impl(block) if block.trait_.is_none() => match &*block.self_ty {
            Type::Path(path)
                if path
                    .path
                    .segments
                    .last()
                    .is_some_and(|last| last.ident == "Shard") =>
            {
                Some(block)
            }
            _ => None,
        },
        _ => None,
    })
}

fn methods(block: &ItemImpl) -> impl Iterator<Item = String> {
    block.items.iter().filter_map(|item| match item {
        ImplItem::Fn(method) => Some(method.sig.ident.to_string()),
        _ => None,
    })
}

/// Calls of methods of the shard: through `self`, `shard` or `Self`.
#[derive(Default)]
struct Calls(Vec<String>);

impl<'ast> Visit<'ast> for Calls {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let Expr::Path(receiver) = &*call.receiver
            && (receiver.path.is_ident("self") || receiver.path.is_ident("shard"))
        {
            self.0.push(call.method.to_string());
        }
        visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(first) = function.path.segments.first()
            && first.ident == "Self"
            && let Some(last) = function.path.segments.last()
        {
            self.0.push(last.ident.to_string());
        }
        visit_expr_call(self, call);
    }
}

/// The calls that do not go down, as "file: method of file".
fn upward(files: &BTreeMap<String, syn::File>, layers: &[String]) -> Vec<String> {
    let mut home = BTreeMap::new();
    for (name, file) in files {
        for method in of_shard(file).flat_map(methods) {
            assert!(
                layers.contains(name),
                "'{name}' has methods of the shard, and no row"
            );
            home.insert(method, name);
        }
    }
    let layer = |name: &String| layers.iter().position(|layer| layer == name);
    let mut found = Vec::new();
    for (name, file) in files {
        let mut calls = Calls::default();
        of_shard(file).for_each(|block| calls.visit_item_impl(block));
        for call in calls.0 {
            if let Some(&callee) = home.get(&call)
                && callee != name
                && layer(callee) < layer(name)
            {
                found.push(format!("{name}: {call} of {callee}"));
            }
        }
    }
    found
}

#[test]
fn methods_of_a_shard_call_only_files_below_their_own() {
    let documentation = std::fs::read_to_string(folder().join("mod.rs")).expect("readable");
    let layers = layers(&documentation);
    let mut files = BTreeMap::new();
    sources(&folder(), "", &mut files);
    let missing: Vec<_> = layers
        .iter()
        .filter(|layer| !files.contains_key(*layer))
        .collect();
    assert!(missing.is_empty(), "no such files: {missing:?}");
    let none: Vec<String> = Vec::new();
    assert_eq!(upward(&files, &layers), none, "calls that go up");
}

#[test]
fn a_call_that_goes_up_is_found() {
    let file = |text: &str| syn::parse_file(text).expect("Rust");
    let files = BTreeMap::from([
        (
            "high".to_owned(),
            file("impl<P> Shard<P> { fn a(&self) { self.b(); } fn c() {} }"),
        ),
        (
            "low".to_owned(),
            file("impl<P> Shard<P> { fn b(&self) { shard.part.a(); if x { Self::c(); shard.a(); } } }"),
        ),
    ]);
    let layers = ["high".to_owned(), "low".to_owned()];
    assert_eq!(upward(&files, &layers), ["low: c of high", "low: a of high"]);
}
