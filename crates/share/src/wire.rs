//! The wire form: one message per packet of a `SOCK_SEQPACKET` socket, at most [`PACKET_MAX`] bytes, little-endian.
//! `docs/reference/uprd-protocol.md` is its description. Decoding allocates at most the length of the packet.

use crate::core::{Granularity, ModelKey, SourceKind};

/// Version of the protocol. A peer of another version is refused with both numbers.
pub const VERSION: u16 = 2;
/// The most bytes of a packet.
pub const PACKET_MAX: usize = 64 * 1024;
/// The most descriptors of a packet; Linux allows 253.
pub const DESCRIPTORS_MAX: usize = 64;
/// The most bytes of a name or selector.
pub const NAME_MAX: usize = 1024;

const MAGIC: [u8; 4] = *b"uprd";
const HEADER: usize = 16;
/// The most bytes of text in a reply: the rest of a packet.
pub const TEXT_MAX: usize = PACKET_MAX - HEADER - 64;

/// Reason why a packet is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum WireError {
    #[error("a packet must have a header of {HEADER} bytes with the magic `uprd`")]
    Header,
    #[error("the protocol version must be {VERSION}, got {0}; use programs of one build")]
    Version(u16),
    #[error("message kind {0} is not known")]
    Kind(u16),
    #[error("the body must have {want} bytes, got {got}")]
    Length { want: usize, got: usize },
    #[error("the message ends within a field")]
    Short,
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    #[error("field `{0}` is out of range")]
    Field(&'static str),
}

/// The treatment of a model that is not resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadMode {
    /// It is refused.
    Never,
    /// The daemon loads the file; the reply waits for that.
    Wait,
    /// The daemon loads the file and replies [`Reply::Filling`] at once: the client uses its own copy of this run.
    Behind,
}

impl LoadMode {
    fn code(self) -> u8 {
        match self {
            LoadMode::Never => 0,
            LoadMode::Wait => 1,
            LoadMode::Behind => 2,
        }
    }

    fn of_code(code: u8) -> Option<LoadMode> {
        [LoadMode::Never, LoadMode::Wait, LoadMode::Behind].into_iter().find(|own| own.code() == code)
    }
}

/// A client's request. Descriptors travel in the same packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A lease of a model. One descriptor may come along: the file to load from if the model is not resident.
    Open {
        /// The model's identity.
        key: ModelKey,
        /// Bytes of memory that the client needs besides the weights; counted if the daemon's estimate includes them.
        internal: u64,
        /// The name to publish the model under; may be empty.
        name: String,
        /// The treatment of a model that is not resident.
        load: LoadMode,
    },
    /// A lease of a model in memory of a device. One descriptor comes along: the file to load from.
    OpenDevice {
        /// The model's identity.
        key: ModelKey,
        /// Bytes of the device's memory that the client needs besides the weights.
        internal: u64,
        /// The treatment of a model that is not resident there.
        load: LoadMode,
        /// The UUID of the device.
        device: String,
    },
    /// A lease of the model that was published under a name.
    OpenName {
        /// The name.
        name: String,
    },
    /// The end of a lease. Closing twice is no error.
    Close {
        /// The lease.
        lease: u64,
    },
    /// Loads a model without a lease. One descriptor comes along.
    Preload {
        /// The model's identity.
        key: ModelKey,
        /// The name to publish the model under; may be empty.
        name: String,
        /// Whether to pin it.
        pin: bool,
    },
    /// Keeps a model resident.
    Pin {
        /// A name or a number of [`Ask::List`].
        model: String,
    },
    /// Ends a pin.
    Unpin {
        /// A name or a number.
        model: String,
    },
    /// Drops an idle model.
    Evict {
        /// A name or a number.
        model: String,
        /// Whether a model in use is hidden now and dropped when its last lease ends.
        drain: bool,
    },
    /// Compares resident bytes with their digests.
    Verify {
        /// A name or a number.
        model: String,
    },
    /// Refuses new leases, waits for the last one, ends the daemon.
    Drain,
    /// Figures as JSON.
    Status,
    /// The settings as JSON.
    Settings,
    /// Changes settings. Idle models over a lower budget are evicted.
    Configure {
        /// Bytes of the host tier; 0 keeps them.
        limit: u64,
        /// A word of the policies; empty keeps it.
        policy: String,
    },
    /// Models as JSON, at most a packet's worth, from a number on.
    List {
        /// The first number.
        from: u64,
    },
    /// Events as JSON from a sequence number on.
    History {
        /// The first sequence number.
        from: u64,
    },
}

/// Where the bytes of a lease came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Resident in host memory.
    Host,
    /// Read from the file for this request, or for another one that was waited for.
    Disk,
    /// Resident in memory of the device that the request names.
    Device,
}

impl Tier {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Host => "host",
            Tier::Disk => "disk",
            Tier::Device => "device",
        }
    }
}

/// The code of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// The packet is malformed or of another version.
    Protocol,
    /// No such model.
    NotFound,
    /// Memory, descriptors, leases or clients are exhausted.
    Exhausted,
    /// The user may not do this.
    Permission,
    /// The file is not the one that the identity names.
    Stale,
    /// The file or the resident bytes are damaged.
    Damaged,
    /// The daemon ends.
    Draining,
    /// The model is in use or pinned.
    Busy,
    /// Not supported.
    Unsupported,
    /// The system failed.
    System,
}

const CODES: [(Code, &str); 10] = [
    (Code::Protocol, "PROTOCOL"),
    (Code::NotFound, "NOT_FOUND"),
    (Code::Exhausted, "EXHAUSTED"),
    (Code::Permission, "PERMISSION"),
    (Code::Stale, "STALE"),
    (Code::Damaged, "DAMAGED"),
    (Code::Draining, "DRAINING"),
    (Code::Busy, "BUSY"),
    (Code::Unsupported, "UNSUPPORTED"),
    (Code::System, "SYSTEM"),
];

impl Code {
    /// The word in messages.
    pub fn name(self) -> &'static str {
        CODES.iter().find(|(code, _)| *code == self).expect("every code has a row").1
    }
}

/// The daemon's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A lease. For granularity `model` one descriptor: the section. For `layer` the manifest, then the extents.
    Opened {
        /// The lease's number on this connection.
        lease: u64,
        /// The model's number.
        model: u64,
        /// Grows with every load.
        generation: u64,
        /// The granularity of the descriptors.
        granularity: Granularity,
        /// The size of the section in bytes.
        size: u64,
        /// Where the bytes came from.
        tier: Tier,
        /// Microseconds of the load; 0 for [`Tier::Host`].
        load_us: u64,
    },
    /// The model is not resident; the daemon loads it. There is no lease.
    Filling {
        /// The model's number.
        model: u64,
    },
    /// Done; nothing to add.
    Done,
    /// JSON. `next` is the number to continue from; 0 at the end.
    Text {
        /// The document.
        text: String,
        /// Where the next page starts.
        next: u64,
    },
    /// A refusal.
    Refused {
        /// The code.
        code: Code,
        /// The reason, for people.
        message: String,
    },
}

impl Reply {
    /// A refusal; a long message is cut.
    pub fn refused(code: Code, message: impl Into<String>) -> Reply {
        let mut message: String = message.into();
        if 4 * NAME_MAX < message.len() {
            let end = (0..=4 * NAME_MAX).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
            message.truncate(end);
        }
        Reply::Refused { code, message }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u16, id: u32) -> Writer {
        let mut writer = Writer(Vec::with_capacity(128));
        writer.0.extend_from_slice(&MAGIC);
        writer.0.extend_from_slice(&VERSION.to_le_bytes());
        writer.0.extend_from_slice(&kind.to_le_bytes());
        writer.0.extend_from_slice(&id.to_le_bytes());
        writer.0.extend_from_slice(&[0; 4]);
        writer
    }

    fn byte(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(value);
        self
    }

    fn number(&mut self, value: u64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Writer {
        self.0.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    fn key(&mut self, key: &ModelKey) -> &mut Writer {
        self.byte(key.granularity.code()).byte(key.source.code()).bytes(&key.digest).number(key.size)
    }

    fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - HEADER) as u32;
        self.0[12..16].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(WireError::Short)?;
        self.0 = rest;
        Ok(head)
    }

    fn byte(&mut self) -> Result<u8, WireError> {
        Ok(self.take(1)?[0])
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, WireError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Field(field)),
        }
    }

    fn load(&mut self) -> Result<LoadMode, WireError> {
        LoadMode::of_code(self.byte()?).ok_or(WireError::Field("load"))
    }

    fn number(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes were taken")))
    }

    fn text(&mut self, limit: usize, field: &'static str) -> Result<String, WireError> {
        let length = u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes were taken")) as usize;
        if limit < length {
            return Err(WireError::Field(field));
        }
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map(str::to_string).map_err(|_| WireError::Field(field))
    }

    /// A name of printable characters, so that it is safe in logs.
    fn name(&mut self, field: &'static str) -> Result<String, WireError> {
        let text = self.text(NAME_MAX, field)?;
        if text.chars().any(is_unprintable) { Err(WireError::Field(field)) } else { Ok(text) }
    }

    fn key(&mut self) -> Result<ModelKey, WireError> {
        let granularity = Granularity::of_code(self.byte()?).ok_or(WireError::Field("granularity"))?;
        let source = SourceKind::of_code(self.byte()?).ok_or(WireError::Field("source"))?;
        let digest = self.take(32)?.try_into().expect("32 bytes were taken");
        let size = self.number()?;
        // Sums of sizes must not overflow anywhere in the daemon.
        if (1 << 50) < size {
            return Err(WireError::Field("size"));
        }
        Ok(ModelKey { user: 0, granularity, source, digest, size })
    }

    fn end(self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Trailing(self.0.len())) }
    }
}

/// Splits a packet into kind, request number and body.
fn header(packet: &[u8]) -> Result<(u16, u32, &[u8]), WireError> {
    let (head, body) = packet.split_at_checked(HEADER).ok_or(WireError::Header)?;
    if head[..4] != MAGIC {
        return Err(WireError::Header);
    }
    let version = u16::from_le_bytes([head[4], head[5]]);
    if version != VERSION {
        return Err(WireError::Version(version));
    }
    let id = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    let want = u32::from_le_bytes([head[12], head[13], head[14], head[15]]) as usize;
    if want != body.len() {
        return Err(WireError::Length { want, got: body.len() });
    }
    Ok((u16::from_le_bytes([head[6], head[7]]), id, body))
}

/// The number of a packet's request; 0 if it has none.
pub fn request_id(packet: &[u8]) -> u32 {
    packet.get(8..12).map_or(0, |id| u32::from_le_bytes(id.try_into().expect("a range of 4 bytes")))
}

impl Ask {
    /// The packet.
    pub fn encode(&self, id: u32) -> Vec<u8> {
        let kind = match self {
            Ask::Open { .. } => 1,
            Ask::OpenName { .. } => 2,
            Ask::Close { .. } => 3,
            Ask::Preload { .. } => 4,
            Ask::Pin { .. } => 5,
            Ask::Unpin { .. } => 6,
            Ask::Evict { .. } => 7,
            Ask::Verify { .. } => 8,
            Ask::Drain => 9,
            Ask::Status => 10,
            Ask::Settings => 11,
            Ask::List { .. } => 12,
            Ask::History { .. } => 13,
            Ask::Configure { .. } => 14,
            Ask::OpenDevice { .. } => 15,
        };
        let mut to = Writer::new(kind, id);
        match self {
            Ask::Open { key, internal, name, load } => to.key(key).number(*internal).byte(load.code()).text(name),
            Ask::OpenDevice { key, internal, load, device } => {
                to.key(key).number(*internal).byte(load.code()).text(device)
            }
            Ask::Preload { key, name, pin } => to.key(key).byte((*pin).into()).text(name),
            Ask::OpenName { name } => to.text(name),
            Ask::Close { lease } => to.number(*lease),
            Ask::Pin { model } | Ask::Unpin { model } | Ask::Verify { model } => to.text(model),
            Ask::Evict { model, drain } => to.byte((*drain).into()).text(model),
            Ask::Drain | Ask::Status | Ask::Settings => &mut to,
            Ask::List { from } | Ask::History { from } => to.number(*from),
            Ask::Configure { limit, policy } => to.number(*limit).text(policy),
        };
        to.finish()
    }

    /// The request of a packet, with its number.
    ///
    /// # Errors
    /// Anything but exactly one well-formed request.
    pub fn decode(packet: &[u8]) -> Result<(u32, Ask), WireError> {
        let (kind, id, body) = header(packet)?;
        let mut from = Reader(body);
        let ask = match kind {
            1 => {
                let (key, internal, load) = (from.key()?, from.number()?, from.load()?);
                if (1 << 50) < internal {
                    return Err(WireError::Field("internal"));
                }
                Ask::Open { key, internal, load, name: from.name("name")? }
            }
            2 => Ask::OpenName { name: from.name("name")? },
            3 => Ask::Close { lease: from.number()? },
            4 => {
                let (key, pin) = (from.key()?, from.flag("pin")?);
                Ask::Preload { key, pin, name: from.name("name")? }
            }
            5 => Ask::Pin { model: from.name("model")? },
            6 => Ask::Unpin { model: from.name("model")? },
            7 => {
                let drain = from.flag("drain")?;
                Ask::Evict { drain, model: from.name("model")? }
            }
            8 => Ask::Verify { model: from.name("model")? },
            9 => Ask::Drain,
            10 => Ask::Status,
            11 => Ask::Settings,
            12 => Ask::List { from: from.number()? },
            13 => Ask::History { from: from.number()? },
            14 => {
                let limit = from.number()?;
                if (1 << 50) < limit {
                    return Err(WireError::Field("limit"));
                }
                Ask::Configure { limit, policy: from.name("policy")? }
            }
            15 => {
                let (key, internal, load) = (from.key()?, from.number()?, from.load()?);
                if (1 << 50) < internal {
                    return Err(WireError::Field("internal"));
                }
                Ask::OpenDevice { key, internal, load, device: from.name("device")? }
            }
            other => return Err(WireError::Kind(other)),
        };
        from.end()?;
        Ok((id, ask))
    }
}

impl Reply {
    /// The packet.
    pub fn encode(&self, id: u32) -> Vec<u8> {
        let kind = match self {
            Reply::Opened { .. } => 128,
            Reply::Done => 129,
            Reply::Text { .. } => 130,
            Reply::Refused { .. } => 131,
            Reply::Filling { .. } => 132,
        };
        let mut to = Writer::new(kind, id);
        match self {
            Reply::Opened { lease, model, generation, granularity, size, tier, load_us } => to
                .number(*lease)
                .number(*model)
                .number(*generation)
                .byte(granularity.code())
                .number(*size)
                .byte(match tier {
                    Tier::Host => 0,
                    Tier::Disk => 1,
                    Tier::Device => 2,
                })
                .number(*load_us),
            Reply::Filling { model } => to.number(*model),
            Reply::Done => &mut to,
            Reply::Text { text, next } => to.number(*next).text(text),
            Reply::Refused { code, message } => {
                let code = CODES.iter().position(|(own, _)| own == code).expect("every code has a row");
                to.byte(code as u8).text(message)
            }
        };
        to.finish()
    }

    /// The reply of a packet, with the number of its request.
    ///
    /// # Errors
    /// Anything but exactly one well-formed reply.
    pub fn decode(packet: &[u8]) -> Result<(u32, Reply), WireError> {
        let (kind, id, body) = header(packet)?;
        let mut from = Reader(body);
        let reply = match kind {
            128 => Reply::Opened {
                lease: from.number()?,
                model: from.number()?,
                generation: from.number()?,
                granularity: Granularity::of_code(from.byte()?).ok_or(WireError::Field("granularity"))?,
                size: from.number()?,
                tier: match from.byte()? {
                    0 => Tier::Host,
                    1 => Tier::Disk,
                    2 => Tier::Device,
                    _ => return Err(WireError::Field("tier")),
                },
                load_us: from.number()?,
            },
            129 => Reply::Done,
            130 => {
                let next = from.number()?;
                Reply::Text { next, text: from.text(TEXT_MAX, "text")? }
            }
            131 => {
                let code = CODES.get(usize::from(from.byte()?)).ok_or(WireError::Field("code"))?.0;
                Reply::Refused { code, message: from.text(TEXT_MAX, "message")? }
            }
            132 => Reply::Filling { model: from.number()? },
            other => return Err(WireError::Kind(other)),
        };
        from.end()?;
        Ok((id, reply))
    }
}

/// Whether a character of a name changes the state of a terminal or the order of text: a control character, a line or
/// paragraph separator, explicit directional formatting (Unicode Standard Annex 9, section 2).
fn is_unprintable(c: char) -> bool {
    let is_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_direction || matches!(c, '\u{2028}' | '\u{2029}') || c.is_control()
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    fn asks() -> Vec<Ask> {
        let key = ModelKey {
            user: 0,
            granularity: Granularity::Layer,
            source: SourceKind::Image,
            digest: [77; 32],
            size: 1 << 40,
        };
        vec![
            Ask::Open { key, internal: 5, name: "résumé".into(), load: LoadMode::Never },
            Ask::Open { key, internal: 5, name: String::new(), load: LoadMode::Behind },
            Ask::OpenName { name: "x".into() },
            Ask::OpenDevice { key, internal: 6, load: LoadMode::Wait, device: "GPU-1".into() },
            Ask::Close { lease: u64::MAX },
            Ask::Preload { key, name: String::new(), pin: true },
            Ask::Pin { model: "1".into() },
            Ask::Unpin { model: "n".repeat(NAME_MAX) },
            Ask::Evict { model: "a".into(), drain: true },
            Ask::Verify { model: "a".into() },
            Ask::Drain,
            Ask::Status,
            Ask::Settings,
            Ask::List { from: 3 },
            Ask::History { from: 4 },
            Ask::Configure { limit: 5, policy: "lru".into() },
        ]
    }

    fn replies() -> Vec<Reply> {
        let opened = |tier| Reply::Opened {
            lease: 1,
            model: 2,
            generation: 3,
            granularity: Granularity::Model,
            size: 4,
            tier,
            load_us: 5,
        };
        let mut all = vec![opened(Tier::Host), opened(Tier::Disk), opened(Tier::Device), Reply::Done];
        all.push(Reply::Filling { model: 6 });
        all.push(Reply::Text { text: "{}".repeat(20_000), next: 9 });
        all.extend(CODES.map(|(code, name)| Reply::refused(code, name)));
        all
    }

    #[test]
    fn messages_decode_to_themselves_within_a_packet() {
        for (id, ask) in asks().into_iter().enumerate() {
            let packet = ask.encode(id as u32);
            assert!(packet.len() <= PACKET_MAX);
            assert_eq!(Ask::decode(&packet), Ok((id as u32, ask)));
        }
        for reply in replies() {
            let packet = reply.encode(7);
            assert!(packet.len() <= PACKET_MAX);
            assert_eq!(Reply::decode(&packet), Ok((7, reply)));
        }
    }

    #[test]
    fn damaged_packets_are_refused_or_decode_to_one_message_and_never_panic() {
        let mut random = Random::for_name(25, "packets");
        let seeds: Vec<Vec<u8>> =
            asks().iter().map(|ask| ask.encode(1)).chain(replies().iter().map(|reply| reply.encode(1))).collect();
        let (mut refused, mut accepted) = (0, 0);
        for round in 0..200_000 {
            let mut packet = seeds[random.below(seeds.len() as u64) as usize].clone();
            packet.truncate(200);
            match round % 4 {
                0 => packet.truncate(random.below(packet.len() as u64 + 1) as usize),
                1 => packet.extend((0..random.below(9)).map(|_| random.below(256) as u8)),
                2 => packet = (0..random.below(80)).map(|_| random.below(256) as u8).collect(),
                _ => {}
            }
            for _ in 0..random.below(4) {
                if !packet.is_empty() {
                    let at = random.below(packet.len() as u64) as usize;
                    packet[at] = random.below(256) as u8;
                }
            }
            if round % 2 == 0 && HEADER <= packet.len() {
                let length = (packet.len() - HEADER) as u32;
                packet[12..16].copy_from_slice(&length.to_le_bytes());
            }
            match Ask::decode(&packet) {
                Ok((id, ask)) => {
                    accepted += 1;
                    assert_eq!(ask.encode(id), packet, "one message has one form");
                }
                Err(_) => refused += 1,
            }
            if let Ok((id, reply)) = Reply::decode(&packet) {
                assert_eq!(reply.encode(id), packet, "one message has one form");
            }
        }
        assert!(1000 < accepted && 1000 < refused, "{accepted} accepted, {refused} refused");
    }

    /// Sums of a few thousand such sizes fit into 64 bits.
    #[test]
    fn sizes_and_names_are_bounded() {
        const MOST: u64 = 1 << 50;
        let (granularity, source) = (Granularity::Model, SourceKind::Image);
        let key = |size| ModelKey { user: 0, granularity, source, digest: [1; 32], size };
        let (load, name) = (LoadMode::Wait, String::new);
        let open = |size, internal| Ask::Open { key: key(size), internal, name: name(), load };
        let on_device = |size, internal| Ask::OpenDevice { key: key(size), internal, load, device: name() };
        let preload = |size| Ask::Preload { key: key(size), name: name(), pin: false };
        let configure = |limit| Ask::Configure { limit, policy: name() };
        let within = [open(MOST, MOST), on_device(MOST, MOST), preload(MOST), configure(MOST)];
        for ask in within {
            assert_eq!(Ask::decode(&ask.encode(1)), Ok((1, ask)));
        }
        for (ask, field) in [
            (open(MOST + 1, 0), "size"),
            (open(0, MOST + 1), "internal"),
            (on_device(MOST + 1, 0), "size"),
            (on_device(0, MOST + 1), "internal"),
            (preload(u64::MAX), "size"),
            (configure(MOST + 1), "limit"),
            (Ask::OpenName { name: "n".repeat(NAME_MAX + 1) }, "name"),
            (Ask::Pin { model: "n".repeat(NAME_MAX + 1) }, "model"),
        ] {
            assert_eq!(Ask::decode(&ask.encode(1)), Err(WireError::Field(field)), "{field}");
        }
    }

    #[test]
    fn names_that_change_a_terminal_are_refused() {
        for name in ["a\nb", "a\u{9b}b", "resnet\u{202e}05", "a\u{2067}b", "a\u{2028}b"] {
            let packet = Ask::Pin { model: name.into() }.encode(1);
            assert_eq!(Ask::decode(&packet), Err(WireError::Field("model")), "{name:?}");
        }
        let packet = Ask::Pin { model: "größe 日本".into() }.encode(1);
        assert!(Ask::decode(&packet).is_ok());
    }

    #[test]
    fn another_version_is_refused_with_both_numbers() {
        let mut packet = Ask::Status.encode(1);
        packet[4] = 9;
        let text = Ask::decode(&packet).map_err(|error| error.to_string());
        assert_eq!(text, Err("the protocol version must be 2, got 9; use programs of one build".into()));
    }
}
