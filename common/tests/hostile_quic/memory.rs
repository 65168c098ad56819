//! An allocator that counts what the whole process holds: a server keeps what an attacker sends on
//! threads of its own. Whoever measures must be alone in the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn take(size: usize) {
    let held = HELD.fetch_add(size, Relaxed) + size;
    PEAK.fetch_max(held, Relaxed);
}

fn free(size: usize) {
    HELD.fetch_sub(size, Relaxed);
}

// SAFETY: every call goes to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks may exist at once while the bytes are moved.
        take(size);
        free(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        free(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What the process held at some time.
pub struct Before(usize);

/// Begins to measure.
pub fn now() -> Before {
    let held = HELD.load(Relaxed);
    PEAK.store(held, Relaxed);
    Before(held)
}

impl Before {
    /// Most that was held at one time since then, over what was held then, in bytes.
    pub fn growth(&self) -> usize {
        PEAK.load(Relaxed).saturating_sub(self.0)
    }
}
