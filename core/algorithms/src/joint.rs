//! A start at several parts, each of which decides for itself: at all of them, or at none.
//!
//! Nothing joins the parts but the order of these steps: no lock, and no word that says what a starter is doing.
//!
//! 1. A part counts what it admits at once, so no part is ever over, whatever the others say. A start exists when the
//!    last part has admitted it.
//! 2. If a part denies or fails, each part before it gets its units back, once.
//! 3. Nobody waits for a part while it holds units of another. So starters with opposite orders never wait for each
//!    other. They may deny each other: what one of them holds for these few steps is taken for the other.
//! 4. A starter that dies in between leaves what it took as a start of each of these parts. It comes back as theirs do: a
//!    lease when its holder is found dead, a start of a rate with its window.

/// Claims these parts, one after the other, or none. Returns what was claimed; or which part denied, and its denial.
///
/// # Errors
/// That of a part that failed; else that of `give_back`.
#[inline]
pub fn take_all<P, D, E>(
    parts: impl Iterator<Item = usize>,
    mut take: impl FnMut(usize) -> Result<Result<P, D>, E>,
    give_back: impl FnOnce(&[P]) -> Result<(), E>,
) -> Result<Result<Vec<P>, (usize, D)>, E> {
    let mut taken = Vec::with_capacity(parts.size_hint().0);
    for part in parts {
        let denial = match take(part) {
            Ok(Ok(claimed)) => {
                taken.push(claimed);
                continue;
            }
            Ok(Err(denial)) => Ok(denial),
            Err(error) => Err(error),
        };
        // (2)
        let given_back = give_back(&taken);
        let denial = denial?;
        return given_back.map(|()| Err((part, denial)));
    }
    Ok(Ok(taken))
}

#[cfg(all(test, model))]
#[path = "joint_models.rs"]
mod models;
