//! A search through everything that can happen in a model, for tests of this crate and of the core.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Visits all states that can be reached from the first one, whose print is its hash. `act` takes a step, and returns what it has
/// violated. Returns how many states there are, and the shortest way to a violation, if there is one.
pub fn visit<W: Clone + Hash, A: Copy, V>(
    first: W,
    actions: impl Fn(&W) -> Vec<A>,
    act: impl Fn(&mut W, A) -> Option<V>,
) -> (usize, Option<(V, Vec<A>)>) {
    let print = |world: &W| {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        hasher.finish()
    };
    let mut visited = HashSet::from([print(&first)]);
    let (mut layer, mut ways) = (vec![(first, usize::MAX)], Vec::<(usize, A)>::new());
    while !layer.is_empty() {
        let mut next = Vec::new();
        for (world, at) in layer {
            for action in actions(&world) {
                let mut after = world.clone();
                let wrong = act(&mut after, action);
                if wrong.is_none() && !visited.insert(print(&after)) {
                    continue;
                }
                ways.push((at, action));
                if let Some(wrong) = wrong {
                    let (mut way, mut at) = (Vec::new(), ways.len() - 1);
                    while at != usize::MAX {
                        way.push(ways[at].1);
                        at = ways[at].0;
                    }
                    way.reverse();
                    return (visited.len(), Some((wrong, way)));
                }
                next.push((after, ways.len() - 1));
            }
        }
        layer = next;
    }
    (visited.len(), None)
}
