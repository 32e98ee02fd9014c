//! Circles in a directed graph: its strongly connected components of more than one node, by Tarjan's algorithm.

use std::collections::{BTreeMap, BTreeSet};

/// Edges by the index of the node where they begin.
pub(super) type Edges = Vec<BTreeSet<usize>>;

/// Each set of nodes that can all be reached from each other, in ascending order.
pub(super) fn circles(edges: &Edges) -> Vec<BTreeSet<usize>> {
    let mut search = Search { edges, found: BTreeMap::new(), stack: Vec::new(), circles: Vec::new() };
    for node in 0..edges.len() {
        if !search.found.contains_key(&node) {
            search.visit(node);
        }
    }
    search.circles.sort();
    search.circles
}

struct Search<'a> {
    edges: &'a Edges,
    /// When a node was found: nodes are numbered in this order.
    found: BTreeMap<usize, usize>,
    /// Nodes whose component is not complete.
    stack: Vec<usize>,
    circles: Vec<BTreeSet<usize>>,
}

impl Search<'_> {
    /// Visit a node and all that it leads to. The lowest number of a node on the stack that can be reached from it.
    fn visit(&mut self, node: usize) -> usize {
        let number = self.found.len();
        self.found.insert(node, number);
        self.stack.push(node);
        let mut lowest = number;
        for next in self.edges.get(node).into_iter().flatten().copied() {
            match self.found.get(&next).copied() {
                None => lowest = lowest.min(self.visit(next)),
                Some(number) if self.stack.contains(&next) => lowest = lowest.min(number),
                Some(_) => {}
            }
        }
        if lowest == number
            && let Some(place) = self.stack.iter().position(|on_stack| *on_stack == node)
        {
            let component: BTreeSet<usize> = self.stack.drain(place..).collect();
            if component.len() > 1 {
                self.circles.push(component);
            }
        }
        lowest
    }
}
