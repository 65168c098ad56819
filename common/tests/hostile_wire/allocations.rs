//! An allocator that counts what the current thread allocates, for tests of memory bounds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Constant initial values and no destructor, so that the allocator itself may use them.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static TOTAL: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn count(freed: usize, taken: usize) {
    // Fails only while the thread ends, when nobody measures any more.
    let _ = LIVE.try_with(|live| {
        let now = live.get() - freed as isize + taken as isize;
        live.set(now);
        PEAK.with(|peak| peak.set(peak.get().max(now)));
        TOTAL.with(|total| total.set(total.get() + taken));
    });
}

// SAFETY: every call goes to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks may exist at once while the bytes are moved.
        count(0, size);
        count(layout.size(), 0);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one call allocated on its thread, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Allocated {
    /// Most that was held at one time, over what was held before.
    pub peak: usize,
    /// Sum of all requests.
    pub total: usize,
}

/// Calls `work` and counts what it allocates.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, Allocated) {
    let live = LIVE.get();
    PEAK.set(live);
    let total = TOTAL.get();
    let value = work();
    let peak = usize::try_from(PEAK.get() - live).expect("a peak is not below its start");
    (value, Allocated { peak, total: TOTAL.get() - total })
}
