//! Pages that Prometheus reads (text format 0.0.4), made of readings at the moment of a scrape.
//!
//! A reading that is absent is left out, and so is a family without any: absent is never 0.

use prometheus::TextEncoder;
pub use prometheus::proto::MetricFamily;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricType};

/// What `Content-Type` says of a page.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Whether a family counts up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

/// The families of one page, in the order in which they were begun.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<MetricFamily>,
}

impl Page {
    /// Begins a family; every name may be begun once.
    pub fn family(&mut self, name: &str, help: &str, kind: Kind) -> Family<'_> {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(match kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
        });
        self.families.push(family);
        let index = self.families.len() - 1;
        Family { kind, family: &mut self.families[index] }
    }

    /// Adds families that were gathered elsewhere.
    pub fn extend(&mut self, families: Vec<MetricFamily>) {
        self.families.extend(families);
    }

    /// The page as text.
    ///
    /// # Errors
    /// When a family has no name, which is a defect of the program.
    pub fn text(mut self) -> Result<String, prometheus::Error> {
        self.families.retain(|family| !family.get_metric().is_empty());
        TextEncoder::new().encode_to_string(&self.families)
    }
}

/// A family to which readings are added.
pub struct Family<'a> {
    kind: Kind,
    family: &'a mut MetricFamily,
}

impl Family<'_> {
    /// Adds a reading; one that is absent or not a number is left out.
    pub fn add(&mut self, labels: &[(&str, &str)], value: impl Into<Option<f64>>) {
        let Some(value) = value.into().filter(|value| value.is_finite()) else { return };
        let pair = |(name, value): &(&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        let mut metric = Metric::from_label(labels.iter().map(pair).collect());
        match self.kind {
            Kind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            Kind::Gauge => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
        }
        self.family.mut_metric().push(metric);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_was_read_and_nothing_else() {
        let mut page = Page::default();
        let mut heat = page.family("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", Kind::Gauge);
        heat.add(&[("gpu", "0")], 31.0);
        heat.add(&[("gpu", "1")], None);
        heat.add(&[("gpu", "2")], f64::NAN);
        page.family("nothing_read", "Left out.", Kind::Gauge).add(&[], None);
        let mut energy = page.family("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "mJ.", Kind::Counter);
        energy.add(&[("name", "a \"b\"\\\n")], 2.5e12);
        assert_eq!(
            page.text().unwrap(),
            "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n\
             # TYPE DCGM_FI_DEV_GPU_TEMP gauge\n\
             DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 31\n\
             # HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION mJ.\n\
             # TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n\
             DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{name=\"a \\\"b\\\"\\\\\\n\"} 2500000000000\n"
        );
    }
}
