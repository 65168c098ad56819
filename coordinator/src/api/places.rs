//! A bounded number of places, of which no one holder gets more than a share: open streams of a user,
//! connections from an address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places of one kind.
#[derive(Debug)]
pub(super) struct Places<K> {
    all: usize,
    each: usize,
    taken: Mutex<BTreeMap<K, usize>>,
}

/// The right to one of them; given back on drop.
pub(super) struct Place<K: Ord> {
    places: Arc<Places<K>>,
    holder: K,
}

/// There is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The holder has so many.
    Own(usize),
    /// Everybody together has so many.
    All(usize),
}

impl<K> Places<K> {
    /// So many in `all`, and for `each` holder.
    pub fn new(all: usize, each: usize) -> Self {
        Places { all, each, taken: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, usize>> {
        // Counts are whole after every statement, so a poisoned lock can be used.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone> Places<K> {
    /// # Errors
    /// There is none for this holder, or for anybody.
    pub fn take(self: &Arc<Self>, holder: &K) -> Result<Place<K>, Full> {
        let mut taken = self.lock();
        let own = taken.get(holder).copied().unwrap_or(0);
        if own >= self.each {
            return Err(Full::Own(own));
        }
        let all: usize = taken.values().sum();
        if all >= self.all {
            return Err(Full::All(all));
        }
        taken.insert(holder.clone(), own + 1);
        Ok(Place { places: Arc::clone(self), holder: holder.clone() })
    }
}

impl<K: Ord> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        match taken.get_mut(&self.holder) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_holder_and_given_back() {
        let places = Arc::new(Places::new(256, 64));
        let held: Vec<_> = (0..64).map_while(|_| places.take(&0).ok()).collect();
        assert_eq!(held.len(), 64);
        assert_eq!(places.take(&0).err(), Some(Full::Own(64)));
        let others: Vec<_> = (0..1000).map_while(|n| places.take(&(1 + n / 50)).ok()).collect();
        assert_eq!(held.len() + others.len(), 256);
        assert_eq!(places.take(&99).err(), Some(Full::All(256)));
        drop(held);
        assert!(places.take(&0).is_ok());
        drop(others);
        assert!(places.lock().is_empty());
    }
}
