//! The plan of a campaign: combines a campaign file, options and defaults.

mod check;
mod complete;
mod replay;
mod wanted;
mod words;

pub use complete::{
    DataPlan, LEVELS_MAX, Method, POOL_BYTES_DEDUP_MIN, POOL_BYTES_MAX, PRECONDITION_MAX, Plan,
    RECORD_BYTES_MAX, RECORD_BYTES_MIN, Rounds, WARM_UP_MAX,
};
pub use replay::{REPLAY, Replay};
pub use wanted::Wanted;
pub use words::{Bytes, EngineWord, FamilyWord, Flush};

#[cfg(test)]
mod tests {
    use super::wanted::tests::wanted;
    use super::*;
    use crate::test::Test;

    #[test]
    fn iops_tests_always_use_4_kib() {
        let plan = Wanted {
            tests: Some(vec!["write".to_owned(), "iops".to_owned(), "write".to_owned()]),
            records: Some(vec![Bytes(1 << 20), Bytes(64 << 10), Bytes(1 << 20)]),
            levels: Some(vec!["50".parse().unwrap()]),
            ..wanted()
        }
        .plan()
        .unwrap();
        assert_eq!(plan.records_of(Test::Write), [64 << 10, 1 << 20]);
        assert_eq!(plan.records_of(Test::ReadIops), [4096]);
        assert_eq!((plan.cells(), plan.record_bounds()), (6, (1 << 20, 4096)));
    }

    #[test]
    fn invalid_plans_are_refused() {
        let told = |change: fn(&mut Wanted)| {
            let mut wanted = wanted();
            change(&mut wanted);
            wanted.plan().unwrap_err().to_string()
        };
        assert!(told(|w| w.target = None).contains("TARGET"));
        assert!(told(|w| w.tests = Some(vec!["raed".into()])).contains("is not a test"));
        assert!(told(|w| w.tests = Some(vec![])).contains("at least one"));
        assert!(told(|w| w.records = Some(vec![Bytes(5000)])).contains("power of two"));
        assert!(told(|w| w.runs = Some(0)).contains("runs: expected 1 to 1000"));
        assert!(told(|w| w.runs_max = Some(20)).contains("--within"));
        assert!(told(|w| w.warm_up = Some(26)).contains("warm-up"));
        assert!(
            told(|w| {
                w.within = Some(2.0);
                w.runs_max = Some(5);
            })
            .contains("10 to 1000")
        );
        assert!(told(|w| w.within = Some(0.0)).contains("percent"));
        assert!(told(|w| w.writers = Some(0)).contains("writers"));
        assert!(told(|w| w.depth = Some(5000)).contains("depth"));
        assert!(told(|w| w.pool = Some(Bytes(1))).contains("pool"));
        assert!(told(|w| w.dedup = Some(99.5)).contains("99%"));
        assert!(
            told(|w| (w.dedup, w.pool) = (Some(10.0), Some(Bytes(8 << 20))))
                .contains("pool of at least 67108864")
        );
        assert!(told(|w| w.levels = Some(vec!["lots".parse().unwrap()])).contains("lots"));
        assert!(
            told(|w| {
                w.engine = Some(EngineWord::Sync);
                w.depth = Some(2);
            })
            .contains("io_uring")
        );
    }

    #[test]
    fn a_plan_survives_serialization() {
        let plan = wanted().plan().unwrap();
        let value = serde_json::to_value(&plan).unwrap();
        assert_eq!(serde_json::from_value::<Plan>(value).unwrap(), plan);
    }
}
