//! Messages of the kernel's NBD driver over generic netlink, without I/O.
//!
//! A message is a netlink header, a generic netlink header, and attributes; all numbers have the byte order of the machine, and
//! headers and attributes begin at multiples of four bytes. The number of the family `nbd` is not fixed: [`family`] asks for
//! it, and the kernel then loads the module. The kernel answers a command with an optional message and an acknowledgement.
//!
//! References: include/uapi/linux/{netlink,genetlink,nbd-netlink}.h and drivers/block/nbd.c of Linux.

use std::os::fd::RawFd;

/// The family that lists all others; its number is fixed.
const CONTROL_FAMILY: u16 = 0x10;
const CONTROL_VERSION: u8 = 1;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const NBD_NAME: &str = "nbd";
const NBD_VERSION: u8 = 1;

/// Netlink: a message that the kernel executes, and that it acknowledges.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
/// Netlink: the type of acknowledgements and errors.
const ERROR: u16 = 2;
/// Set in the type of an attribute that contains attributes, and not part of the type.
const NESTED: u16 = 1 << 15;
const TYPE_MASK: u16 = 0x3fff;

const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// Commands.
mod command {
    pub const CONNECT: u8 = 1;
    pub const DISCONNECT: u8 = 2;
    pub const RECONFIGURE: u8 = 3;
}

/// Attributes.
mod attribute {
    pub const INDEX: u16 = 1;
    pub const SIZE_BYTES: u16 = 2;
    pub const BLOCK_SIZE_BYTES: u16 = 3;
    pub const TIMEOUT: u16 = 4;
    pub const SERVER_FLAGS: u16 = 5;
    pub const SOCKETS: u16 = 7;
    pub const DEAD_CONN_TIMEOUT: u16 = 8;
    pub const BACKEND_IDENTIFIER: u16 = 10;
    /// In `SOCKETS`.
    pub const SOCKET_ITEM: u16 = 1;
    /// In `SOCKET_ITEM`.
    pub const SOCKET_FD: u16 = 1;
}

/// A device to connect.
#[derive(Clone, Debug)]
pub(super) struct Connect<'a> {
    /// Number of the device. The driver makes it, if there is none.
    pub index: u32,
    pub bytes: u64,
    pub block_bytes: u64,
    /// Flags of the NBD protocol.
    pub flags: u16,
    /// How long requests wait for a socket when there is none, in seconds.
    pub wait_s: u64,
    /// By which the device is recognised.
    pub backend: &'a str,
    pub socket: RawFd,
}

/// Asks for the number of the driver's family.
pub(super) fn family(sequence: u32) -> Vec<u8> {
    let mut message = Message::new(CONTROL_FAMILY, GET_FAMILY, CONTROL_VERSION, sequence);
    message.text(FAMILY_NAME, NBD_NAME);
    message.finish()
}

/// Connects an unused device.
pub(super) fn connect(family: u16, sequence: u32, device: &Connect<'_>) -> Vec<u8> {
    let mut message = Message::new(family, command::CONNECT, NBD_VERSION, sequence);
    message.u32(attribute::INDEX, device.index);
    message.u64(attribute::SIZE_BYTES, device.bytes);
    message.u64(attribute::BLOCK_SIZE_BYTES, device.block_bytes);
    // Without a timeout the driver never ends a connection because a request takes long. See `super`.
    message.u64(attribute::TIMEOUT, 0);
    message.u64(attribute::SERVER_FLAGS, u64::from(device.flags));
    message.u64(attribute::DEAD_CONN_TIMEOUT, device.wait_s);
    message.text(attribute::BACKEND_IDENTIFIER, device.backend);
    message.sockets(device.socket);
    message.finish()
}

/// Gives a device that has lost its socket a new one. The driver refuses another backend than that of [`connect`]. If the
/// device still has a socket, it answers as if it had taken the new one, and closes it.
pub(super) fn reconfigure(family: u16, sequence: u32, index: u32, backend: &str, socket: RawFd) -> Vec<u8> {
    let mut message = Message::new(family, command::RECONFIGURE, NBD_VERSION, sequence);
    message.u32(attribute::INDEX, index);
    message.text(attribute::BACKEND_IDENTIFIER, backend);
    message.sockets(socket);
    message.finish()
}

/// Changes the size of a device. The driver refuses another backend than that of [`connect`], and tells the device's users. It
/// completes the requests in flight first, so the server must go on answering them.
pub(super) fn resize(family: u16, sequence: u32, index: u32, backend: &str, bytes: u64) -> Vec<u8> {
    let mut message = Message::new(family, command::RECONFIGURE, NBD_VERSION, sequence);
    message.u32(attribute::INDEX, index);
    message.u64(attribute::SIZE_BYTES, bytes);
    message.text(attribute::BACKEND_IDENTIFIER, backend);
    message.finish()
}

/// Ends a device: requests that wait fail.
pub(super) fn disconnect(family: u16, sequence: u32, index: u32) -> Vec<u8> {
    let mut message = Message::new(family, command::DISCONNECT, NBD_VERSION, sequence);
    message.u32(attribute::INDEX, index);
    message.finish()
}

/// A message that is being written.
struct Message(Vec<u8>);

impl Message {
    fn new(family: u16, command: u8, version: u8, sequence: u32) -> Self {
        let mut bytes = Vec::with_capacity(256);
        // The length follows at the end.
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        bytes.extend_from_slice(&family.to_ne_bytes());
        bytes.extend_from_slice(&(REQUEST | ACKNOWLEDGE).to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        // To the kernel.
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        bytes.extend_from_slice(&[command, version, 0, 0]);
        Self(bytes)
    }

    fn attribute(&mut self, kind: u16, payload: &[u8]) {
        let len = ATTRIBUTE_HEADER_BYTES + payload.len();
        self.0.extend_from_slice(&(len as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(payload);
        self.0.resize(aligned(self.0.len()), 0);
    }

    fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    fn u64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    fn text(&mut self, kind: u16, text: &str) {
        self.attribute(kind, &[text.as_bytes(), &[0]].concat());
    }

    fn sockets(&mut self, socket: RawFd) {
        let nest = |kind: u16, payload: &[u8]| {
            let mut outer = Self(Vec::new());
            outer.attribute(kind, payload);
            outer.0
        };
        let number = nest(attribute::SOCKET_FD, &socket.to_ne_bytes());
        let item = nest(attribute::SOCKET_ITEM | NESTED, &number);
        self.attribute(attribute::SOCKETS | NESTED, &item);
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The end of a command: its error number, or 0.
    End { sequence: u32, errno: i32 },
    /// The answer to [`family`].
    Family { sequence: u32, family: u16 },
    /// Any other message, such as a notice about a device.
    Other,
}

/// The messages of a datagram.
///
/// # Errors
/// It is cut off.
pub(super) fn answers(mut bytes: &[u8]) -> Result<Vec<Answer>, CutOff> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let len = u32_at(bytes, 0)? as usize;
        if len < HEADER_BYTES {
            return Err(CutOff);
        }
        let message = bytes.get(..len).ok_or(CutOff)?;
        all.push(answer(message)?);
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
    }
    Ok(all)
}

/// A message is shorter than it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of the kernel is cut off")]
pub(super) struct CutOff;

fn answer(message: &[u8]) -> Result<Answer, CutOff> {
    let (kind, sequence) = (u16_at(message, 4)?, u32_at(message, 8)?);
    let body = &message[HEADER_BYTES..];
    if kind == ERROR {
        let errno = u32_at(body, 0)?.cast_signed().wrapping_neg();
        return Ok(Answer::End { sequence, errno });
    }
    if kind == CONTROL_FAMILY {
        let attributes = body.get(GENERIC_HEADER_BYTES..).ok_or(CutOff)?;
        let id = find(attributes, FAMILY_ID)?.ok_or(CutOff)?;
        let family = u16_at(id, 0)?;
        return Ok(Answer::Family { sequence, family });
    }
    Ok(Answer::Other)
}

/// The payload of the first attribute of this type.
fn find(mut attributes: &[u8], wanted: u16) -> Result<Option<&[u8]>, CutOff> {
    while !attributes.is_empty() {
        let (len, kind) = (usize::from(u16_at(attributes, 0)?), u16_at(attributes, 2)?);
        let payload = attributes.get(ATTRIBUTE_HEADER_BYTES..len).ok_or(CutOff)?;
        if kind & TYPE_MASK == wanted {
            return Ok(Some(payload));
        }
        attributes = attributes.get(aligned(len)..).unwrap_or_default();
    }
    Ok(None)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, CutOff> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(CutOff)?;
    Ok(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, CutOff> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(CutOff)?;
    Ok(u32::from_ne_bytes(*bytes))
}

/// The bytes are those of a little-endian machine.
#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    const NBD: u16 = 0x1c;

    #[test]
    fn the_family_is_asked_for_by_name() {
        let expected = [
            &[28, 0, 0, 0, 0x10, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0][..], // length, type, flags, sequence, port
            &[3, 1, 0, 0],                                             // GETFAMILY, version
            &[8, 0, 2, 0, b'n', b'b', b'd', 0],
        ];
        assert_eq!(family(7), expected.concat());
    }

    #[test]
    fn a_device_is_connected() {
        let device = Connect {
            index: 3,
            bytes: 1 << 30,
            block_bytes: 4096,
            flags: 0x10d,
            wait_s: 600,
            backend: "flaz-1",
            socket: 9,
        };
        let header = |len| [len, 0, 0, 0, 0x1c, 0, 5, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0];
        let rest = [
            &[12, 0, 2, 0, 0, 0, 0, 0x40, 0, 0, 0, 0][..],
            &[12, 0, 3, 0, 0, 0x10, 0, 0, 0, 0, 0, 0],
            &[12, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[12, 0, 5, 0, 0x0d, 0x01, 0, 0, 0, 0, 0, 0],
            &[12, 0, 8, 0, 0x58, 0x02, 0, 0, 0, 0, 0, 0],
            &[11, 0, 10, 0, b'f', b'l', b'a', b'z', b'-', b'1', 0, 0],
            &[16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 9, 0, 0, 0],
        ]
        .concat();
        let index = [8, 0, 1, 0, 3, 0, 0, 0];
        assert_eq!(
            connect(NBD, 2, &device),
            [&header(116)[..], &index, &rest].concat()
        );
    }

    #[test]
    fn a_device_gets_another_socket_and_is_disconnected() {
        let expected = [
            &[56, 0, 0, 0, 0x1c, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0][..],
            &[8, 0, 1, 0, 3, 0, 0, 0],
            &[11, 0, 10, 0, b'f', b'l', b'a', b'z', b'-', b'1', 0, 0],
            &[16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 9, 0, 0, 0],
        ];
        assert_eq!(reconfigure(NBD, 1, 3, "flaz-1", 9), expected.concat());
        let expected = [
            &[28, 0, 0, 0, 0x1c, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0][..],
            &[8, 0, 1, 0, 3, 0, 0, 0],
        ];
        assert_eq!(disconnect(NBD, 1, 3), expected.concat());
    }

    #[test]
    fn a_device_gets_another_size() {
        let expected = [
            &[52, 0, 0, 0, 0x1c, 0, 5, 0, 4, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0][..],
            &[8, 0, 1, 0, 3, 0, 0, 0],
            &[12, 0, 2, 0, 0, 0, 0, 0x80, 0, 0, 0, 0],
            &[11, 0, 10, 0, b'f', b'l', b'a', b'z', b'-', b'1', 0, 0],
        ];
        assert_eq!(resize(NBD, 4, 3, "flaz-1", 2 << 30), expected.concat());
    }

    fn from_kernel(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&0_u16.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[1, 2, 3, 4]);
        bytes.extend_from_slice(body);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn family_answer() -> Vec<u8> {
        from_kernel(
            CONTROL_FAMILY,
            7,
            &[
                1, 2, 0, 0, // NEWFAMILY
                8, 0, 2, 0, b'n', b'b', b'd', 0, // the name
                6, 0, 1, 0, 0x1c, 0, 0, 0, // the number
            ],
        )
    }

    #[test]
    fn answers_are_understood() {
        let done = from_kernel(ERROR, 7, &[0, 0, 0, 0, 28, 0, 0, 0]);
        let busy = from_kernel(ERROR, 8, &[0xf0, 0xff, 0xff, 0xff]);
        let connected = from_kernel(NBD, 9, &[1, 1, 0, 0, 8, 0, 1, 0, 5, 0, 0, 0]);
        let (sequence, family) = (7, NBD);
        assert_eq!(
            answers(&[family_answer(), done, busy, connected].concat()),
            Ok(vec![
                Answer::Family { sequence, family },
                Answer::End { sequence, errno: 0 },
                Answer::End {
                    sequence: 8,
                    errno: 16
                },
                Answer::Other
            ])
        );
    }

    /// No message makes the decoder panic or loop.
    #[test]
    fn answers_that_are_cut_off_are_refused() {
        let whole = family_answer();
        assert_eq!(answers(&[]), Ok(vec![]));
        for len in 1..whole.len() {
            assert_eq!(answers(&whole[..len]), Err(CutOff), "{len} bytes");
            let mut shorter = whole[..len].to_vec();
            // What follows the attribute of the number is padding.
            if (4..whole.len() - 2).contains(&len) {
                shorter[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                assert_eq!(answers(&shorter), Err(CutOff), "a message of {len} bytes");
            }
        }
        for len in [0_u8, 3, 200] {
            let mut wrong = whole.clone();
            wrong[20] = len;
            assert_eq!(answers(&wrong), Err(CutOff), "an attribute of {len} bytes");
        }
    }
}
