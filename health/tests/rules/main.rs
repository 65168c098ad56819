//! Every rule in virtual time.

mod bounds;
mod document;
mod events;
mod gpus;
mod healthy_day;
mod host;
mod ports;
mod properties;
mod restarts;
mod starts;
mod support;
