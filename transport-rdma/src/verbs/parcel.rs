//! Verbs objects on their way from the thread that made them to the one that shall own them.

/// What was made on one thread, for another. Its objects are `!Send` because handles of one are counted without locks; a whole family of
/// handles may move all the same.
pub struct Parcel<T>(T);

// SAFETY: `new` promises that all handles of everything in here are in here, so that no other thread counts them, before or after it moves: what is
// done with the parcel's content is done by the thread that has it. The libraries guard their own objects with locks (a context may be used by
// any thread, by the manual of libibverbs).
unsafe impl<T> Send for Parcel<T> {}

impl<T> Parcel<T> {
    /// Packs something.
    ///
    /// # Safety
    /// Every handle (`Rc`) of every object that `content` reaches is reached by `content` alone: no clone stays behind. What else it has may be sent.
    pub unsafe fn new(content: T) -> Parcel<T> {
        Parcel(content)
    }

    /// On the thread that shall own it.
    pub fn open(self) -> T {
        self.0
    }
}
