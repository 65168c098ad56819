//! The screen of `gangline watch`: what is known ([`state`]), how it looks ([`draw`]) and where it comes
//! from ([`feed`]).

pub mod draw;
pub mod feed;
pub mod state;
