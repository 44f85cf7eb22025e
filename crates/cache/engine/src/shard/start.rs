//! Starting a shard's tasks, and changes while they run.

use std::rc::Rc;

use flaz_device::Env;

use super::tasks::Phase;
use super::{Platform, Shard};
use crate::settings::Settings;
use crate::write_budget::WriteBudget;

impl<P: Platform> Shard<P> {
    /// Starts the tasks that store admitted blocks, reclaim regions, set and clear intents, write back, and mark stable
    /// lengths.
    pub fn start(self: &Rc<Self>) {
        self.fit_pages();
        self.withhold_regions();
        self.start_following();
        self.tasks.enter(Phase::Serving);
        let (tasks, env) = (&self.tasks, &self.env);
        tasks.spawn(env, Self::admit_task(Rc::clone(self)));
        tasks.spawn(env, Self::reclaim_task(Rc::clone(self)));
        tasks.spawn(env, Self::intent_task(Rc::clone(self)));
        tasks.spawn(env, Self::clear_task(Rc::clone(self)));
        tasks.spawn(env, Self::clean_task(Rc::clone(self)));
        tasks.spawn(env, Self::mark_task(Rc::clone(self)));
    }

    /// Applies settings that can change while serving.
    pub fn set(&self, change: &Settings) {
        if self.tuning.settings().write_budget == WriteBudget::None {
            self.budget.begin(self.env.now(), self.written_bytes());
        }
        self.tuning.change(change, self.map.len() as u64);
        self.writeback.note_limit();
        self.follow_changes();
    }

    /// Sets whether the superblock, stable, permits dirty blocks. Without that, write-back acts as write-through.
    pub fn permit_write_back(&self, permitted: bool) {
        self.writeback.permit(permitted);
    }
}
