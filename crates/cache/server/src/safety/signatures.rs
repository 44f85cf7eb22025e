//! The table of signatures: byte patterns at known offsets that identify the contents of a device or file.
//!
//! The table contains only facts, one signature per row; [`super::probe`] searches for them. Each row names its source:
//! kernel headers if there are any, else the specification of the format, else util-linux's libblkid (version 2.41),
//! which knows all of these formats and was used to check the rows.
//!
//! The purpose is to protect data. A row that sometimes matches random bytes is acceptable; a missing format is not.
//! Magics of two bytes have a `confirm` function that checks more bytes.

use flaz_engine::format::FormatError;
use flaz_engine::format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::format::superblock::{self, Superblock};
use flaz_pool::PoolSuperblock;
use uuid::Uuid;

use super::source::Source;

/// The kind of contents that a signature identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A file system.
    FileSystem,
    /// A partition table.
    PartitionTable,
    /// Swap space or a hibernated system.
    Swap,
    /// Part of a volume manager, an array, an encrypted volume or another program's cache.
    Member,
    /// A cache of flaz.
    Flaz,
    /// A disk image in the format of a virtual machine monitor.
    DiskImage,
    /// Bytes of no known kind.
    Unknown,
}

impl Kind {
    /// The kind as a word to follow the name. Names of members already contain it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::FileSystem => "file system",
            Self::PartitionTable => "partition table",
            Self::Swap => "swap space",
            Self::Member => "",
            Self::Flaz => "cache",
            Self::DiskImage => "disk image",
            Self::Unknown => "data",
        }
    }
}

/// Position of a magic.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// This many bytes from the start.
    At(u64),
    /// This many bytes before the end, after the end is rounded down to a multiple of `align`.
    Back {
        /// Bytes before the end.
        bytes: u64,
        /// Alignment to which the end is rounded down.
        align: u64,
    },
    /// `count` places, `step` bytes apart, from `first` on.
    Every {
        /// The first place.
        first: &'static Place,
        /// Bytes between two.
        step: u64,
        /// How many.
        count: u64,
    },
}

use Place::{At, Back, Every};

impl Place {
    /// The offsets that this means on a device or file of `size_bytes` bytes.
    pub(super) fn offsets(self, size_bytes: u64) -> Box<dyn Iterator<Item = u64>> {
        match self {
            At(offset) => Box::new(std::iter::once(offset)),
            Back { bytes, align } => {
                let end = size_bytes - size_bytes % align;
                Box::new(end.checked_sub(bytes).into_iter())
            }
            Every { first, step, count } => Box::new(
                first
                    .offsets(size_bytes)
                    .flat_map(move |first| (0..count).map(move |at| first + at * step)),
            ),
        }
    }
}

/// Checks more than the magic, which is at `offset`. Returns the name to show, or `None` if the match is a coincidence.
pub type Confirm = fn(source: &Source<'_>, offset: u64) -> std::io::Result<Option<&'static str>>;

/// A row of the table.
#[derive(Debug)]
pub struct Signature {
    /// Name to show.
    pub name: &'static str,
    /// Kind of contents.
    pub kind: Kind,
    /// Its possible positions; each is checked.
    pub places: &'static [Place],
    /// The bytes.
    pub magic: &'static [u8],
    /// A further check, for short magics.
    pub confirm: Option<Confirm>,
}

const fn row(name: &'static str, kind: Kind, places: &'static [Place], magic: &'static [u8]) -> Signature {
    Signature {
        name,
        kind,
        places,
        magic,
        confirm: None,
    }
}

const fn weak(
    name: &'static str,
    kind: Kind,
    places: &'static [Place],
    magic: &'static [u8],
    confirm: Confirm,
) -> Signature {
    Signature {
        name,
        kind,
        places,
        magic,
        confirm: Some(confirm),
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Ten bytes before the end of the first page, whose size was 4 to 64 KiB (linux/swap.h, union swap_header).
const SWAP_PLACES: &[Place] = &[
    At(4 * KIB - 10),
    At(8 * KIB - 10),
    At(16 * KIB - 10),
    At(32 * KIB - 10),
    At(64 * KIB - 10),
];

/// Four labels of 256 KiB, two at the start and two at the end; uberblocks fill the second half of each, in slots
/// of 1 KiB or more (OpenZFS, include/sys/vdev_impl.h and uberblock_impl.h).
const ZFS_PLACES: &[Place] = &[
    Every {
        first: &At(128 * KIB),
        step: KIB,
        count: 128,
    },
    Every {
        first: &At(384 * KIB),
        step: KIB,
        count: 128,
    },
    Every {
        first: &Back {
            bytes: 384 * KIB,
            align: 256 * KIB,
        },
        step: KIB,
        count: 128,
    },
    Every {
        first: &Back {
            bytes: 128 * KIB,
            align: 256 * KIB,
        },
        step: KIB,
        count: 128,
    },
];

/// The end cut to 64 KiB, less 64 KiB (linux/raid/md_p.h, MD_NEW_SIZE_SECTORS).
const MD_090: &[Place] = &[Back {
    bytes: 64 * KIB,
    align: 64 * KIB,
}];
/// 8 KiB before the end cut to 4 KiB; the start; 4 KiB (drivers/md/md.c, super_1_load).
const MD_1: &[Place] = &[
    Back {
        bytes: 8 * KIB,
        align: 4 * KIB,
    },
    At(0),
    At(4 * KIB),
];

/// Secondary LUKS2 headers (LUKS2 On-Disk Format Specification, 2.2).
const LUKS2_SECONDARY: &[Place] = &[
    At(16 * KIB),
    At(32 * KIB),
    At(64 * KIB),
    At(128 * KIB),
    At(256 * KIB),
    At(512 * KIB),
    At(MIB),
    At(2 * MIB),
    At(4 * MIB),
];

/// Volume descriptors of ISO 9660 and ECMA-167, one every 2 KiB from sector 16 on.
const ISO_PLACES: &[Place] = &[Every {
    first: &At(32 * KIB + 1),
    step: 2 * KIB,
    count: 4,
}];

/// The first copy, one at 2 MiB, one before the end.
const BCACHEFS_PLACES: &[Place] = &[
    At(4096 + 24),
    At(2 * MIB + 24),
    Back {
        bytes: MIB - 24,
        align: 512,
    },
];
/// Sectors of 512 or 4096 bytes: the second and the last.
const GPT_PLACES: &[Place] = &[
    At(512),
    At(4096),
    Back {
        bytes: 512,
        align: 512,
    },
    Back {
        bytes: 4096,
        align: 4096,
    },
];

const BCACHE_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

const FLAZ_MAGIC: [u8; 8] = superblock::MAGIC.to_le_bytes();
const POOL_MAGIC: [u8; 8] = flaz_pool::format::MAGIC.to_le_bytes();
const FLAZ_PLACES: &[Place] = &[At(SUPERBLOCK_SLOTS[0]), At(SUPERBLOCK_SLOTS[1])];

/// All rows. The first row that matches at an offset gives the name.
// rustfmt would break the rows over several lines.
#[rustfmt::skip]
pub const TABLE: &[Signature] = &[
    weak("flaz", Kind::Flaz, FLAZ_PLACES, &FLAZ_MAGIC, confirm_flaz),
    weak("flaz", Kind::Flaz, FLAZ_PLACES, &POOL_MAGIC, confirm_pool),
    //
    // File systems.
    //
    // fs/ext4/ext4.h: struct ext4_super_block at 1024, s_magic at 0x38.
    weak("ext2", Kind::FileSystem, &[At(1024 + 0x38)], b"\x53\xef", confirm_ext),
    // fs/xfs/libxfs/xfs_format.h: XFS_SB_MAGIC.
    row("xfs", Kind::FileSystem, &[At(0)], b"XFSB"),
    // fs/xfs/libxfs/xfs_log_format.h: XLOG_HEADER_MAGIC_NUM, on an external log.
    row("xfs log", Kind::FileSystem, &[At(0)], b"\xfe\xed\xba\xbe"),
    // uapi/linux/btrfs_tree.h: BTRFS_MAGIC at 0x40 of the superblocks at 64 KiB, 64 MiB and 256 GiB.
    row("btrfs", Kind::FileSystem, &[At(64 * KIB + 0x40), At(64 * MIB + 0x40), At((256 << 30) + 0x40)], b"_BHRfS_M"),
    // linux/f2fs_fs.h: F2FS_SUPER_OFFSET in the first and the second block.
    row("f2fs", Kind::FileSystem, &[At(1024), At(4096 + 1024)], b"\x10\x20\xf5\xf2"),
    // NTFS boot sector: OEM id at 3, also in the copy in the last sector.
    row("ntfs", Kind::FileSystem, &[At(3), Back { bytes: 512 - 3, align: 512 }], b"NTFS    "),
    // exFAT specification, 3.1.2 FileSystemName; the backup boot region starts at sector 12.
    row("exfat", Kind::FileSystem, &[At(3), At(12 * 512 + 3), At(12 * 4096 + 3)], b"EXFAT   "),
    // Microsoft FAT specification, BS_FilSysType of FAT32 (also in its backup sector, 6) and of FAT12/16.
    row("vfat", Kind::FileSystem, &[At(0x52), At(6 * 512 + 0x52)], b"FAT32   "),
    row("vfat", Kind::FileSystem, &[At(0x36)], b"FAT16   "),
    row("vfat", Kind::FileSystem, &[At(0x36)], b"FAT12   "),
    row("vfat", Kind::FileSystem, &[At(0x36)], b"FAT     "),
    // ReFS: file-system name at 3.
    row("refs", Kind::FileSystem, &[At(3)], b"ReFS\0"),
    // ECMA-119 (ISO 9660) 8.1.2; ECMA-167 2/9.1 for UDF.
    row("iso9660", Kind::FileSystem, ISO_PLACES, b"CD001"),
    row("udf", Kind::FileSystem, ISO_PLACES, b"NSR02"),
    row("udf", Kind::FileSystem, ISO_PLACES, b"NSR03"),
    // OpenZFS, uberblock_impl.h: UBERBLOCK_MAGIC, in either byte order.
    row("zfs pool member", Kind::Member, ZFS_PLACES, &0x00ba_b10c_u64.to_le_bytes()),
    row("zfs pool member", Kind::Member, ZFS_PLACES, &0x00ba_b10c_u64.to_be_bytes()),
    // bcachefs_format.h: struct bch_sb at 4 KiB, magic at 24, copies at 2 MiB and 1 MiB before the end.
    row("bcachefs", Kind::FileSystem, BCACHEFS_PLACES, BCACHEFS_MAGIC),
    // fs/jfs/jfs_superblock.h: JFS_MAGIC at 32 KiB, copy at 60 KiB.
    row("jfs", Kind::FileSystem, &[At(32 * KIB), At(60 * KIB)], b"JFS1"),
    // reiserfs_fs.h: s_magic at 52 of the superblock at 64 KiB (8 KiB before 3.5.9); reiser4 at 64 KiB.
    row("reiserfs", Kind::FileSystem, &[At(64 * KIB + 52), At(8 * KIB + 52)], b"ReIsEr"),
    row("reiser4", Kind::FileSystem, &[At(64 * KIB)], b"ReIsEr4"),
    // uapi/linux/nilfs2_ondisk.h: s_magic at 6 of the superblock at 1024.
    weak("nilfs2", Kind::FileSystem, &[At(1024 + 6)], b"\x34\x34", confirm_nilfs),
    // uapi/linux/minix_fs.h: s_magic at 16 (version 3: at 24) of the superblock at 1024.
    weak("minix", Kind::FileSystem, &[At(1024 + 16)], b"\x7f\x13", confirm_minix),
    weak("minix", Kind::FileSystem, &[At(1024 + 16)], b"\x8f\x13", confirm_minix),
    weak("minix", Kind::FileSystem, &[At(1024 + 16)], b"\x68\x24", confirm_minix),
    weak("minix", Kind::FileSystem, &[At(1024 + 16)], b"\x78\x24", confirm_minix),
    weak("minix", Kind::FileSystem, &[At(1024 + 24)], b"\x5a\x4d", confirm_minix3),
    // Apple TN1150: signature and version of HFS Plus at 1024; Inside Macintosh: Files, for HFS.
    row("hfsplus", Kind::FileSystem, &[At(1024)], b"H+\0\x04"),
    row("hfsx", Kind::FileSystem, &[At(1024)], b"HX\0\x05"),
    weak("hfs", Kind::FileSystem, &[At(1024)], b"BD", confirm_hfs),
    // Apple File System Reference: nx_magic at 32 of the container superblock.
    row("apfs", Kind::FileSystem, &[At(32)], b"NXSB"),
    // FreeBSD sys/ufs/ffs/fs.h: fs_magic at 1372 of the superblock, at 64 KiB (UFS2) or 8 KiB (UFS1).
    row("ufs", Kind::FileSystem, &[At(64 * KIB + 1372)], b"\x19\x01\x54\x19"),
    row("ufs", Kind::FileSystem, &[At(64 * KIB + 1372)], b"\x19\x54\x01\x19"),
    row("ufs", Kind::FileSystem, &[At(8 * KIB + 1372)], b"\x54\x19\x01\x00"),
    row("ufs", Kind::FileSystem, &[At(8 * KIB + 1372)], b"\x00\x01\x19\x54"),
    // fs/squashfs/squashfs_fs.h, fs/erofs/erofs_fs.h, uapi/linux/cramfs_fs.h, fs/romfs.
    row("squashfs", Kind::FileSystem, &[At(0)], b"hsqs"),
    row("squashfs", Kind::FileSystem, &[At(0)], b"sqsh"),
    row("erofs", Kind::FileSystem, &[At(1024)], b"\xe2\xe1\xf5\xe0"),
    row("cramfs", Kind::FileSystem, &[At(0), At(512)], b"\x45\x3d\xcd\x28"),
    row("cramfs", Kind::FileSystem, &[At(0), At(512)], b"\x28\xcd\x3d\x45"),
    row("romfs", Kind::FileSystem, &[At(0)], b"-rom1fs-"),
    // uapi/linux/gfs2_ondisk.h: GFS2_MAGIC at sector 128. fs/ocfs2/ocfs2_fs.h.
    row("gfs2", Kind::FileSystem, &[At(64 * KIB)], b"\x01\x16\x19\x70"),
    row("ocfs2", Kind::FileSystem, &[At(KIB), At(2 * KIB), At(4 * KIB), At(8 * KIB)], b"OCFSV2"),
    // libblkid: vmfs.c, befs.c.
    row("vmfs", Kind::FileSystem, &[At(2 * MIB)], b"\x5e\xf1\xab\x2f"),
    row("vmfs volume member", Kind::Member, &[At(MIB)], b"\x0d\xd0\x01\xc0"),
    row("befs", Kind::FileSystem, &[At(512 + 0x20)], b"1SFB"),
    // uapi/linux/magic.h: ZONEFS_MAGIC.
    row("zonefs", Kind::FileSystem, &[At(0)], b"SFOZ"),
    //
    // Partition tables.
    //
    // UEFI specification, 5.3: header in sector 1 and in the last one, of 512 or 4096 bytes.
    row("gpt", Kind::PartitionTable, GPT_PLACES, b"EFI PART"),
    // UEFI specification, 5.2.1: four entries of 16 bytes at 446, then the mark.
    weak("dos", Kind::PartitionTable, &[At(510)], b"\x55\xaa", confirm_dos),
    // libblkid: bsd.c, sgi.c, sun.c, mac.c.
    row("bsd disklabel", Kind::PartitionTable, &[At(512), At(64), At(128)], b"\x57\x45\x56\x82"),
    row("sgi", Kind::PartitionTable, &[At(0)], b"\x0b\xe5\xa9\x41"),
    weak("sun", Kind::PartitionTable, &[At(508)], b"\xda\xbe", confirm_sun),
    row("mac", Kind::PartitionTable, &[At(512)], b"PM\0\0"),
    // uapi/linux/... arch/s390/include/uapi/asm/vtoc.h: "VOL1" in EBCDIC.
    row("dasd", Kind::PartitionTable, &[At(2 * 4096), At(2 * 512)], b"\xe5\xd6\xd3\xf1"),
    //
    // Swap and hibernation (linux/swap.h; kernel/power/swap.c; TuxOnIce and uswsusp by libblkid's swap.c).
    //
    row("linux", Kind::Swap, SWAP_PLACES, b"SWAPSPACE2"),
    row("linux", Kind::Swap, SWAP_PLACES, b"SWAP-SPACE"),
    row("hibernated system", Kind::Swap, SWAP_PLACES, b"S1SUSPEND"),
    row("hibernated system", Kind::Swap, SWAP_PLACES, b"S2SUSPEND"),
    row("hibernated system", Kind::Swap, SWAP_PLACES, b"ULSUSPEND"),
    row("hibernated system", Kind::Swap, SWAP_PLACES, b"LINHIB0001"),
    //
    // Encryption.
    //
    // LUKS1 On-Disk Format, 2.1; LUKS2 On-Disk Format, 2.2. BitLocker: signature at 3.
    row("luks volume", Kind::Member, &[At(0)], b"LUKS\xba\xbe"),
    row("luks volume (second header)", Kind::Member, LUKS2_SECONDARY, b"SKUL\xba\xbe"),
    row("bitlocker volume", Kind::Member, &[At(3)], b"-FVE-FS-"),
    //
    // Volume managers and arrays.
    //
    // LVM2 lib/format_text/layout.h, lib/label/label.h: "LABELONE" in one of the first four sectors, type at 24.
    row("lvm2 physical volume", Kind::Member, &[At(0x18), At(0x218), At(0x418), At(0x618)], b"LVM2 001"),
    weak("lvm1 physical volume", Kind::Member, &[At(0)], b"HM", confirm_lvm1),
    // linux/raid/md_p.h: MD_SB_MAGIC, in the order of the machine that made it for 0.90, little-endian for 1.x.
    row("md raid 0.90 member", Kind::Member, MD_090, b"\xfc\x4e\x2b\xa9"),
    row("md raid 0.90 member", Kind::Member, MD_090, b"\xa9\x2b\x4e\xfc"),
    row("md raid 1.x member", Kind::Member, MD_1, b"\xfc\x4e\x2b\xa9"),
    // SNIA DDF 2.0, 5.5: anchor header in the last sector. Intel RAID: metadata in the last but one.
    row("ddf raid member", Kind::Member, &[Back { bytes: 512, align: 512 }], b"\xde\x11\xde\x11"),
    row("intel raid member", Kind::Member, &[Back { bytes: 1024, align: 512 }], b"Intel Raid ISM Cfg Sig. "),
    // libblkid: lsi_raid.c, drbd.c, stratis.c, bluestore.c, mpool.c, ocfs.c (Oracle ASM).
    row("lsi raid member", Kind::Member, &[Back { bytes: 512, align: 512 }], b"$XIDE$"),
    row("drbd device", Kind::Member, &[Back { bytes: 4096 - 60, align: 4096 }], b"\x83\x74\x02\x6b"),
    row("drbd device", Kind::Member, &[Back { bytes: 4096 - 60, align: 4096 }], b"\x83\x74\x02\x6c"),
    row("drbd device", Kind::Member, &[Back { bytes: 4096 - 60, align: 4096 }], b"\x83\x74\x02\x6d"),
    row("stratis pool member", Kind::Member, &[At(512 + 4), At(512 * 9 + 4)], b"!Stra0tis\x86\xff\x02^\x41rh"),
    row("ceph bluestore device", Kind::Member, &[At(0)], b"bluestore block device"),
    row("mpool member", Kind::Member, &[At(0)], b"mpoolDev"),
    row("oracle asm disk", Kind::Member, &[At(32)], b"ORCLDISK"),
    //
    // Other caches, and device-mapper metadata (drivers/md in the kernel's tree). The superblocks of dm-cache, dm-thin,
    // dm-era and dm-clone begin with checksum, flags, block number and UUID; a 64-bit magic follows at 32.
    //
    // linux/bcache.h (uapi): bcache_magic at 24 of the superblock at 4 KiB.
    row("bcache device", Kind::Member, &[At(4096 + 24)], BCACHE_MAGIC),
    // dm-cache-metadata.c: CACHE_SUPERBLOCK_MAGIC 06142003, which C reads as octal.
    row("dm-cache metadata", Kind::Member, &[At(32)], &0o6_142_003_u64.to_le_bytes()),
    // dm-thin-metadata.c: THIN_SUPERBLOCK_MAGIC 27022010.
    row("dm-thin metadata", Kind::Member, &[At(32)], &27_022_010_u64.to_le_bytes()),
    // dm-era-target.c: SUPERBLOCK_MAGIC 2126579579.
    row("dm-era metadata", Kind::Member, &[At(32)], &2_126_579_579_u64.to_le_bytes()),
    // dm-clone-metadata.c: SUPERBLOCK_MAGIC.
    row("dm-clone metadata", Kind::Member, &[At(32)], &0x8af2_7f64_u64.to_le_bytes()),
    // dm-writecache.c: MEMORY_SUPERBLOCK_MAGIC, then version 1.
    row("dm-writecache device", Kind::Member, &[At(0)], b"\x21\x93\x48\x23\x01\0\0\0"),
    // dm-snap-persistent.c: SNAP_MAGIC.
    row("dm-snapshot exception store", Kind::Member, &[At(0)], b"SnAp"),
    // cryptsetup docs: verity superblock; dm-integrity.c: SB_MAGIC. vdo: dmvdo001.
    row("dm-verity hashes", Kind::Member, &[At(0)], b"verity\0\0"),
    row("dm-integrity volume", Kind::Member, &[At(0)], b"integrt\0"),
    row("vdo volume", Kind::Member, &[At(0)], b"dmvdo001"),
    //
    // Disk images, found in files as a rule: QEMU docs/interop/qcow2.txt; VirtualBox; VMware; Microsoft.
    //
    row("qcow2", Kind::DiskImage, &[At(0)], b"QFI\xfb"),
    row("vdi", Kind::DiskImage, &[At(0x40)], b"\x7f\x10\xda\xbe"),
    row("vmdk", Kind::DiskImage, &[At(0)], b"KDMV"),
    row("vhdx", Kind::DiskImage, &[At(0)], b"vhdxfile"),
    row("vhd", Kind::DiskImage, &[At(0), Back { bytes: 512, align: 512 }], b"conectix"),
];

/// Name of a flaz cache that may contain the only copy of some writes.
pub(super) const DIRTY_CACHE: &str = "dirty (newer than its origin) flaz";

/// Name of such a cache that another version of flaz made.
pub(super) const OTHER_VERSION: &str = "dirty flaz (of another version)";

/// Name of a shared cache device with volumes, each of which may be dirty.
pub(super) const WITH_VOLUMES: &str = "shared (with volumes) flaz";

/// Detects that the cache may contain the only copy of some writes. The newer of its two superblocks
/// says so; in a damaged superblock, bit 0 of the feature bits does.
fn confirm_flaz(source: &Source<'_>, _: u64) -> std::io::Result<Option<&'static str>> {
    let mut is_of_other_version = false;
    let mut newest: Option<Superblock> = None;
    let mut dirty = false;
    for slot in SUPERBLOCK_SLOTS {
        let Some(page) = source.bytes::<SUPERBLOCK_BYTES>(slot)? else {
            continue;
        };
        match Superblock::parse(&page, source.size_bytes()) {
            Ok(found) => newest = newest.into_iter().chain([found]).max_by_key(|one| one.generation),
            Err(error) => {
                let is_dirty = page[..8] == FLAZ_MAGIC && page[16] & 1 != 0;
                dirty |= is_dirty;
                is_of_other_version |= is_dirty && matches!(error, FormatError::Version { .. });
            }
        }
    }
    if newest.is_none() && is_of_other_version {
        return Ok(Some(OTHER_VERSION));
    }
    dirty |= newest.is_some_and(|superblock| superblock.dirty);
    Ok(Some(if dirty { DIRTY_CACHE } else { "flaz" }))
}

/// The UUIDs of the caches on a device, as far as its superblocks can be read: that of a cache, and those of the volumes of a
/// shared device.
pub(super) fn cache_uuids(source: &Source<'_>) -> std::io::Result<Vec<Uuid>> {
    let mut found = Vec::new();
    for slot in SUPERBLOCK_SLOTS {
        let page = source.bytes::<SUPERBLOCK_BYTES>(slot)?;
        let parsed = page.and_then(|page| Superblock::parse(&page, source.size_bytes()).ok());
        found.extend(parsed.map(|superblock| superblock.uuid));
    }
    for slot in flaz_pool::format::SLOTS {
        let bytes = source.bytes::<{ flaz_pool::format::SUPERBLOCK_BYTES }>(slot)?;
        let parsed = bytes.and_then(|bytes| PoolSuperblock::parse(&bytes, source.size_bytes()).ok());
        found.extend(
            parsed
                .into_iter()
                .flat_map(|pool| pool.volumes)
                .map(|volume| volume.uuid),
        );
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The volumes of a shared device may contain the only copy of some writes.
fn confirm_pool(source: &Source<'_>, _: u64) -> std::io::Result<Option<&'static str>> {
    let mut has_volumes = false;
    for slot in flaz_pool::format::SLOTS {
        let bytes = source.bytes::<{ flaz_pool::format::SUPERBLOCK_BYTES }>(slot)?;
        let parsed = bytes.map(|bytes| PoolSuperblock::parse(&bytes, source.size_bytes()));
        // One that cannot be read may have any.
        has_volumes |= parsed.is_some_and(|found| found.map_or(true, |found| !found.volumes.is_empty()));
    }
    Ok(Some(if has_volumes { WITH_VOLUMES } else { "flaz" }))
}

/// Distinguishes ext2, ext3 and ext4, and rejects coincidences, by the superblock around the magic (fs/ext4/ext4.h).
fn confirm_ext(source: &Source<'_>, offset: u64) -> std::io::Result<Option<&'static str>> {
    const JOURNAL: u32 = 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    /// Features that ext3 supports: filetype, recover, journal device, meta_bg; sparse_super, large_file.
    const EXT3_INCOMPATIBLE: u32 = 0x1e;
    const EXT3_READ_ONLY: u32 = 0x7;
    let Some(block) = source.bytes::<256>(offset - 0x38)? else {
        return Ok(None);
    };
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (blocks, log_block_size, blocks_per_group, revision) = (word(4), word(24), word(32), word(76));
    if log_block_size > 6 || blocks_per_group == 0 || revision > 1 {
        return Ok(None);
    }
    let (compatible, incompatible, read_only) = (word(92), word(96), word(100));
    let blocks_high = if incompatible & 0x80 == 0 { 0 } else { 1 };
    if blocks == 0 && blocks_high == 0 {
        return Ok(None);
    }
    Ok(Some(if incompatible & JOURNAL_DEVICE != 0 {
        "ext journal"
    } else if incompatible & !EXT3_INCOMPATIBLE != 0 || read_only & !EXT3_READ_ONLY != 0 {
        "ext4"
    } else if compatible & JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    }))
}

/// Revision 2 precedes the magic.
fn confirm_nilfs(source: &Source<'_>, offset: u64) -> std::io::Result<Option<&'static str>> {
    let revision = source.bytes::<4>(offset - 6)?;
    Ok((revision == Some([2, 0, 0, 0])).then_some("nilfs2"))
}

/// Zones have the size of a block, and the state is a known one.
fn confirm_minix(source: &Source<'_>, offset: u64) -> std::io::Result<Option<&'static str>> {
    let Some(block) = source.bytes::<20>(offset - 16)? else {
        return Ok(None);
    };
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let (inodes, inode_map_blocks, zone_map_blocks, log_zone_size, state) =
        (half(0), half(4), half(6), half(10), half(18));
    let sound = inodes > 0 && inode_map_blocks > 0 && zone_map_blocks > 0 && log_zone_size == 0 && state < 4;
    Ok(sound.then_some("minix"))
}

/// The same for version 3.
fn confirm_minix3(source: &Source<'_>, offset: u64) -> std::io::Result<Option<&'static str>> {
    let Some(block) = source.bytes::<32>(offset - 24)? else {
        return Ok(None);
    };
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let (inode_map_blocks, zone_map_blocks, log_zone_size, block_size) =
        (half(6), half(8), half(12), half(28));
    let sound =
        inode_map_blocks > 0 && zone_map_blocks > 0 && log_zone_size == 0 && block_size.is_power_of_two();
    Ok(sound.then_some("minix"))
}

/// The size of an allocation block is a multiple of 512.
fn confirm_hfs(source: &Source<'_>, offset: u64) -> std::io::Result<Option<&'static str>> {
    let size = source.bytes::<4>(offset + 20)?.map(u32::from_be_bytes);
    Ok(size.filter(|size| *size > 0 && size % 512 == 0).map(|_| "hfs"))
}

/// Four valid entries, at least one of them used. Boot sectors of file systems end with the same mark.
fn confirm_dos(source: &Source<'_>, offset: u64) -> std::io::Result<Option<&'static str>> {
    const PROTECTIVE: u8 = 0xee;
    let Some(entries) = source.bytes::<64>(offset - 64)? else {
        return Ok(None);
    };
    let (entries, _) = entries.as_chunks::<16>();
    let used = |entry: &&[u8; 16]| {
        let sectors = u32::from_le_bytes([entry[12], entry[13], entry[14], entry[15]]);
        entry[4] != 0 && sectors != 0
    };
    let sound = entries.iter().all(|entry| entry[0] & 0x7f == 0) && entries.iter().any(|entry| used(&entry));
    let protective = entries.iter().filter(used).all(|entry| entry[4] == PROTECTIVE);
    Ok(sound.then_some(if protective { "protective dos" } else { "dos" }))
}

/// The XOR of the sector's 16-bit words is zero (libblkid's sun.c).
fn confirm_sun(source: &Source<'_>, offset: u64) -> std::io::Result<Option<&'static str>> {
    let Some(sector) = source.bytes::<512>(offset - 508)? else {
        return Ok(None);
    };
    let (words, _) = sector.as_chunks::<2>();
    let sum = words.iter().fold(0, |sum, word| sum ^ u16::from_be_bytes(*word));
    Ok((sum == 0).then_some("sun"))
}

/// Version 1 or 2 follows.
fn confirm_lvm1(source: &Source<'_>, offset: u64) -> std::io::Result<Option<&'static str>> {
    let version = source.bytes::<2>(offset + 2)?.map(u16::from_le_bytes);
    Ok(version
        .filter(|version| matches!(version, 1 | 2))
        .map(|_| "lvm1 physical volume"))
}
