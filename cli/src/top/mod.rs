//! The screen of `gangline top`: what is known ([`state`]), how it looks ([`draw`]) and where it comes
//! from ([`feed`]).

pub mod draw;
pub mod feed;
pub mod state;
