//! What is in use of many limits: a script for each of them (`survey.lua`), in one pipeline to each node.

use super::link::SOON;
use super::{Node, Redis, key_of, list_of_states, text_of};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::server::survey::{Found, FoundKey, Question};
use crate::time::Tick;
use redis::{Cmd, ConnectionLike, FromRedisValue, RedisError, RedisResult, ServerError, Value};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many keys are examined at each of two places, of all limits together; and the least and the most of one limit.
/// (A script takes the server about 25 µs, and a key 5 to 10.)
const EXAMINED: usize = 2_048;
const EXAMINED_OF_ONE: (usize, usize) = (2, 128);

impl Redis {
    pub(super) fn survey_all(
        &self,
        questions: &[Question],
        now: Option<Tick>,
        patience: Duration,
    ) -> Result<Vec<Found>> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed());
        let (least, most) = EXAMINED_OF_ONE;
        let examined = (EXAMINED / questions.len().max(1)).clamp(least, most);
        let commands: Vec<Cmd> = questions.iter().map(|question| self.command(question, examined, now)).collect();
        let mut answers: Vec<Option<Found>> = questions.iter().map(|_| None).collect();
        let mut waiting: Vec<usize> = (0..questions.len()).collect();
        while !waiting.is_empty() && left() > Duration::ZERO {
            let mut nodes = BTreeMap::<_, Vec<usize>>::new();
            for at in std::mem::take(&mut waiting) {
                nodes.entry(self.links.node_of(questions[at].limit)).or_default().push(at);
            }
            for some in nodes.into_values() {
                let asked: Vec<Cmd> = some.iter().map(|at| commands[*at].clone()).collect();
                let values = self.with(questions[some[0]].limit, left(), |node| self.send(node, &asked))?;
                for (at, mut value) in some.into_iter().zip(values) {
                    let limit = questions[at].limit;
                    if let Value::ServerError(error) = &value {
                        if self.links.follow(limit, &RedisError::from(error.clone())) {
                            waiting.push(at);
                            continue;
                        }
                        // A single request is redirected as any other.
                        let again = std::slice::from_ref(&commands[at]);
                        value = self.with(limit, left(), |node| node.query_all(again))?.remove(0);
                    }
                    match value {
                        Value::ServerError(error) if is_elsewhere(&error) => {
                            std::thread::sleep(SOON.min(left()));
                            waiting.push(at);
                        }
                        value => {
                            let found = read(value).map_err(|error| self.explain(&error, began.elapsed()))?;
                            answers[at] = Some(found);
                        }
                    }
                }
            }
        }
        answers.into_iter().collect::<Option<_>>().ok_or_else(|| Error::StoreTimeout {
            doing: format!("asking {}", self.url),
            reason: "limits are moving to another node".into(),
            waited_ms: began.elapsed().as_millis() as u64,
        })
    }

    fn command(&self, question: &Question, examined: usize, now: Option<Tick>) -> Cmd {
        let (limit, place) = (question.limit, if question.place.is_empty() { "0" } else { question.place });
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.survey.get_hash()).arg(2).arg(key_of(limit)).arg(list_of_states(limit, question.family));
        command.arg(text_of(now)).arg(question.family.letter()).arg(examined).arg(examined).arg(place);
        for hash in &question.keys {
            command.arg(hash.to_string());
        }
        command
    }

    /// Sends requests at once, of which each may fail.
    fn send(&self, node: &mut Node, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
        let mut pipe = redis::pipe();
        for command in commands {
            pipe.add_command(command.clone());
        }
        let (bytes, count) = (pipe.get_packed_pipeline(), pipe.len());
        let answers = node.connection.req_packed_commands(&bytes, 0, count)?;
        let is_unknown = |answer: &Value| matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT");
        if !answers.iter().any(is_unknown) {
            return Ok(answers);
        }
        self.survey.load(&mut node.connection)?;
        node.connection.req_packed_commands(&bytes, 0, count)
    }
}

/// Returns whether the script found no key that should be there: its slot is moving to another node, which takes a moment.
fn is_elsewhere(error: &ServerError) -> bool {
    error.details().is_some_and(|what| what.contains("non local key"))
}

/// An answer of the script.
fn read(value: Value) -> RedisResult<Found> {
    let value = match value {
        Value::ServerError(error) => return Err(error.into()),
        value => value,
    };
    let mut all = Vec::<Option<String>>::from_redis_value(value)?.into_iter();
    let mut next = || all.next().flatten();
    let mut found = Found { policy: next(), overriding: next(), ..Found::default() };
    let mut number = || next().and_then(|text| text.parse().ok()).unwrap_or(0);
    [found.now, found.gate, found.born, found.keys] = std::array::from_fn(|_| number());
    found.place = number().to_string();
    while let (Some(hash), Some(own), Some(numbers)) = (next(), next(), next()) {
        // Only a negative phase is no such number, and nobody asks for it.
        let mut numbers = numbers.split(' ').map(|number| number.parse().unwrap_or(0));
        let gate = numbers.next().unwrap_or(0);
        let own = Some(own).filter(|own| !own.is_empty());
        found.states.extend(Hash::parse(&hash).map(|hash| FoundKey { hash, own, gate, numbers: numbers.collect() }));
    }
    Ok(found)
}
