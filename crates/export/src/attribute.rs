//! Attributes of nodes.

use crate::message::Message;

/// A name and a value.
#[derive(Clone, Debug)]
pub(crate) struct Attribute(Message);

impl Attribute {
    fn new(name: &str, kind: i64, value: impl FnOnce(&mut Message)) -> Attribute {
        let mut message = Message::default();
        message.text(1, name);
        value(&mut message);
        message.int(20, kind);
        Attribute(message)
    }

    pub(crate) fn float(name: &str, value: f32) -> Attribute {
        Attribute::new(name, 1, |message| message.float(2, value))
    }

    pub(crate) fn int(name: &str, value: i64) -> Attribute {
        Attribute::new(name, 2, |message| message.int(3, value))
    }

    pub(crate) fn flag(name: &str, value: bool) -> Attribute {
        Attribute::int(name, i64::from(value))
    }

    pub(crate) fn text(name: &str, value: &str) -> Attribute {
        Attribute::new(name, 3, |message| message.text(4, value))
    }

    pub(crate) fn floats(name: &str, values: &[f32]) -> Attribute {
        Attribute::new(name, 6, |message| values.iter().for_each(|&value| message.float(7, value)))
    }

    pub(crate) fn ints(name: &str, values: impl IntoIterator<Item = usize>) -> Attribute {
        Attribute::new(name, 7, |message| values.into_iter().for_each(|value| message.int(8, value as i64)))
    }

    pub(crate) fn texts(name: &str, values: &[&str]) -> Attribute {
        Attribute::new(name, 8, |message| values.iter().for_each(|value| message.text(9, value)))
    }

    pub(crate) fn message(&self) -> &Message {
        &self.0
    }
}
