//! The report as JSON. Times and durations are in seconds.

use super::{Report, seconds};
use crate::json::{self, Keys};
use crate::simulate::guarantee::Kind;
use crate::simulate::measure::Bin;
use crate::simulate::subject::{Callers, Group, Subject};
use serde_json::{Value, json};

impl Report<'_, '_> {
    pub fn to_json(&self, keys: Keys) -> Value {
        let wait = match self.callers {
            Callers::GoAway => json!(false),
            Callers::Wait(None) => json!(true),
            Callers::Wait(Some(most)) => json!(json::seconds(most)),
        };
        let policies: Vec<Value> = self.subjects.iter().map(|subject| self.subject_json(subject, keys)).collect();
        let first = self.subjects.first().map(|subject| &subject.found);
        json!({
            "from": first.map(|found| seconds(found.from)),
            "to": first.map(|found| seconds(found.to)),
            "requests": first.map(|found| found.total.requests),
            "keys": self.keys(),
            "wait": wait,
            "policies": policies,
        })
    }

    fn subject_json(&self, subject: &Subject, keys: Keys) -> Value {
        let (found, total) = (&subject.found, &subject.found.total);
        let wait = |part: f64| seconds(found.waits.quantile(part));
        let most = subject.bounds.iter().map(|bound| {
            json!({
                "part": subject.parts.get(bound.part),
                "window": (bound.guarantee.window > 0).then(|| seconds(bound.guarantee.window)),
                "aligned": bound.guarantee.kind == Kind::Aligned,
                "limit": bound.guarantee.limit,
                "bound": bound.allowed(),
                "most": bound.most,
                "utilisation": bound.utilisation(found.from, found.to),
            })
        });
        let top = |group: &Group| {
            self.top_keys(group)
                .iter()
                .map(|(id, counts)| {
                    let key = match keys {
                        Keys::Shown => json!(&**self.keys.text(*id)),
                        Keys::Hidden => Value::Null,
                    };
                    json!({
                        "key": key,
                        "line": self.keys.line(*id),
                        "requests": counts.requests,
                        "admitted": counts.admitted,
                        "denied": counts.denied,
                        "waited": counts.waited,
                        "units": counts.units,
                    })
                })
                .collect::<Vec<_>>()
        };
        let of_parts = subject.groups.iter().filter_map(|group| {
            let part = self.keys.part_name(group.part?);
            Some(json!({ "part": part, "keys": group.counts.len(), "top_keys": top(group) }))
        });
        let series = subject.series().map(|series| {
            let of = |value: fn(&Bin) -> Value| series.bins().map(value).collect::<Vec<_>>();
            json!({
                "from": seconds(series.begins()),
                "width": seconds(series.length()),
                "wanted": of(|bin| bin.wanted.into()),
                "admitted": of(|bin| bin.admitted.into()),
                "denied": of(|bin| bin.denied.into()),
                "waiting": of(|bin| bin.waiting.into()),
                "used": of(|bin| json!((bin.used * 1e6).round() / 1e6)),
            })
        });
        json!({
            "policy": subject.policy,
            "admitted": total.admitted,
            "denied": total.denied,
            "denied_by": found.denied_by,
            "too_heavy": total.too_heavy,
            "waited": total.waited,
            "units_wanted": total.units_wanted,
            "units": total.units,
            "waits": { "p50": wait(0.5), "p95": wait(0.95), "p99": wait(0.99), "longest": seconds(found.waits.longest()) },
            "most_waiting": found.most_waiting,
            "backlog": found.backlog,
            "cleared_after": seconds(found.cleared_after),
            "never_started": found.never,
            "most": most.collect::<Vec<_>>(),
            "utilisation": subject.utilisation(None),
            "top_keys": top(&subject.groups[0]),
            "keys_of_parts": of_parts.collect::<Vec<_>>(),
            "series": series,
        })
    }
}
