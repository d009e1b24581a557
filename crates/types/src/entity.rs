//! Typed ids and the maps they index. An id is a `u32` that indexes one map only.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// An id: a dense index with a type of its own. Made by [`entity!`](crate::entity).
pub trait EntityId: Copy + Ord {
    /// The id at a position.
    fn from_index(index: usize) -> Self;
    /// The position of an id.
    fn index(self) -> usize;
}

/// Declares an id type: `entity!(pub NodeId, "n")` prints as `n7`.
#[macro_export]
macro_rules! entity {
    ($(#[$doc:meta])* $vis:vis $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis struct $name(u32);

        impl $crate::EntityId for $name {
            fn from_index(index: usize) -> Self {
                $name(u32::try_from(index).expect("fewer than 2^32 entities"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

/// A dense map from ids to values, in order of insertion.
#[derive(Clone, PartialEq)]
pub struct Map<K, V> {
    items: Vec<V>,
    key: PhantomData<K>,
}

impl<K: EntityId, V> Map<K, V> {
    /// An empty map.
    pub fn new() -> Self {
        Map { items: Vec::new(), key: PhantomData }
    }

    /// A map with `value` for each of the first `len` ids.
    pub fn filled(len: usize, value: V) -> Self
    where
        V: Clone,
    {
        Map { items: vec![value; len], key: PhantomData }
    }

    /// Adds a value and returns its id.
    pub fn push(&mut self, value: V) -> K {
        self.items.push(value);
        K::from_index(self.items.len() - 1)
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The value of an id, if the id belongs to this map.
    pub fn get(&self, key: K) -> Option<&V> {
        self.items.get(key.index())
    }

    /// All ids.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.items.len()).map(K::from_index)
    }

    /// All values.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator {
        self.items.iter()
    }

    /// Ids with their values.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(ix, value)| (K::from_index(ix), value))
    }
}

impl<K: EntityId, V> Default for Map<K, V> {
    fn default() -> Self {
        Map::new()
    }
}

impl<K: EntityId, V> Index<K> for Map<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        &self.items[key.index()]
    }
}

impl<K: EntityId, V> IndexMut<K> for Map<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.items[key.index()]
    }
}

impl<K: EntityId, V> FromIterator<V> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        Map { items: values.into_iter().collect(), key: PhantomData }
    }
}

impl<K: EntityId + fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
