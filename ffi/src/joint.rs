//! Joint starts: what a start charges each part of a composite.

use crate::input::{given, hand_out, invalid, key, shared, text};
use crate::limiter::wgl_limiter;
use crate::permit::{end, wgl_permit};
use crate::status::{WGL_OK, guard};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::slice;
use workglow_limit::{Charge, JointKey, Limiter, Result};

/// What one part of a composite is charged for a start. Zeroed but for its part, it changes nothing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_charge {
    /// The part's name; a part of a composite that is itself a part is "OUTER/INNER".
    pub part: *const c_char,
    /// The key. NULL: that of the start.
    pub key: *const c_char,
    /// Its length.
    pub key_len: usize,
    /// The weight. 0: that of the start.
    pub weight: u64,
}

/// The units that one part of a composite used.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct wgl_usage {
    /// The part's name, as in wgl_charge.
    pub part: *const c_char,
    /// The units that its job used.
    pub units: u64,
}

/// The key of a joint start, with what each part is charged. The caller owns it and frees it with wgl_joint_key_free. Any
/// number of calls of the limiter that it was made for may use it, at once too. It belongs to its process and forked
/// children.
pub struct wgl_joint_key {
    key: JointKey,
}

/// The most charges: a composite has fewer parts.
const MOST: usize = 4_096;

/// Returns an array that C passes.
///
/// # Safety
/// `items` is NULL or points to `count` items that live as long as the result is used.
unsafe fn items<'a, T>(parameter: &'static str, items: *const T, count: usize) -> Result<&'a [T]> {
    match count {
        0 => Ok(&[]),
        1..=MOST if !items.is_null() => {
            // SAFETY: the caller's promise.
            Ok(unsafe { slice::from_raw_parts(items, count) })
        }
        1..=MOST => Err(invalid(parameter, format_args!("NULL, of {count}"), "a pointer, or 0 of them")),
        _ => Err(invalid(parameter, format_args!("{count} items"), "at most 4096")),
    }
}

/// Makes the key of a joint start, which charges some parts of a composite with keys or weights of their own. Parts that are
/// not named are charged with `key`, and with the weight that the call gets. Pass its text and length as the key of any call
/// of the same limiter:
///
///     wgl_charge charges[] = {{"tokens", NULL, 0, 1200}, {"tenant", "acme", 4, 0}};
///     wgl_joint_key *call;
///     wgl_joint_key_new(llm, NULL, 0, charges, 2, &call);
///     wgl_acquire(llm, wgl_joint_key_text(call), wgl_joint_key_length(call), 1, timeout_ns, &permit, NULL);
///
/// Fails with WGL_INVALID_ARGUMENT for a part that the limiter does not have or that is named twice, or a key of more than
/// 1,024 bytes. A weight above a part's capacity is an error of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_joint_key_new(
    limiter: Option<&wgl_limiter>,
    key: *const c_char,
    key_len: usize,
    charges: *const wgl_charge,
    charge_count: usize,
    joint: Option<&mut MaybeUninit<Box<wgl_joint_key>>>,
) -> c_int {
    guard(|| {
        let (limiter, out) = (given("limiter", limiter)?, given("joint", joint)?);
        // SAFETY: the caller's promise, here and below.
        let (start, charges) = unsafe { (self::key(key, key_len)?, items("charges", charges, charge_count)?) };
        let charge = |charge: &wgl_charge| -> Result<Charge> {
            // SAFETY: as above.
            let (part, key) = unsafe { (text("part", charge.part)?, self::key(charge.key, charge.key_len)?) };
            Ok(Charge {
                part,
                key: (!charge.key.is_null()).then_some(key),
                weight: (charge.weight > 0).then_some(charge.weight),
            })
        };
        let charges = charges.iter().map(charge).collect::<Result<Vec<Charge>>>()?;
        let key = limiter.limiter.joint(start, &charges)?;
        hand_out(out, wgl_joint_key { key });
        Ok(WGL_OK)
    })
}

/// Returns the text to pass as a key. It does not end with a NUL, and lives as long as `joint`. It is for calls of this
/// process, and not to be kept, sent or shown.
///
/// Never fails: NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_joint_key_text(joint: Option<&wgl_joint_key>) -> *const c_char {
    joint.map_or(ptr::null(), |joint| joint.key.as_ptr().cast())
}

/// Returns the length of that text.
///
/// Never fails: 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_joint_key_length(joint: Option<&wgl_joint_key>) -> usize {
    joint.map_or(0, |joint| joint.key.len())
}

/// Frees the key of a joint start. NULL is a no-op. Starts and waiters that were made with it are not concerned.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_joint_key_free(joint: Option<Box<wgl_joint_key>>) {
    guard(|| {
        drop(joint);
        Ok(WGL_OK)
    });
}

/// Ends the permit of a joint start: the job ran, and these parts used so many units instead of the weight that they were
/// charged, as by wgl_settle. The other parts used what they were charged. Ending it again is a no-op.
///
/// Fails as wgl_cancel does, and with WGL_INVALID_ARGUMENT for a part that the limiter does not have or that is named twice;
/// the permit is not ended then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_settle_parts(
    limiter: Option<NonNull<wgl_limiter>>,
    permit: Option<&mut wgl_permit>,
    parts: *const wgl_usage,
    part_count: usize,
) -> c_int {
    let settle = |limiter: &dyn Limiter, permit: &workglow_limit::RawPermit| {
        // SAFETY: the caller's promise, here and below.
        let parts = unsafe { items("parts", parts, part_count) }?;
        // SAFETY: as above.
        let part = |part: &wgl_usage| -> Result<(&str, u64)> { Ok((unsafe { text("part", part.part) }?, part.units)) };
        limiter.settle_parts(permit, &parts.iter().map(part).collect::<Result<Vec<_>>>()?)
    };
    // SAFETY: the caller's promise.
    end(unsafe { shared(limiter) }, permit, settle)
}

/// Returns the name of one of a composite's parts, in their order, or NULL behind the last one. It lives as long as the
/// limiter.
///
/// Never fails: NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_limiter_part_name(limiter: Option<&wgl_limiter>, index: usize) -> *const c_char {
    let name = |limiter: &wgl_limiter| limiter.limiter.part_names().get(index).map(|name| limiter.name(name));
    limiter.and_then(name).unwrap_or(ptr::null())
}
