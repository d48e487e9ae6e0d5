//! List of the arguments of one kernel launch, packed as the driver reads them.

use bytemuck::NoUninit;

use super::Address;

/// Largest total size of a kernel's arguments, in words of eight bytes.
const WORDS: usize = 32;

/// Kernel arguments in the order of the kernel's parameters, each aligned to eight bytes.
#[derive(Debug, Clone, Default)]
pub struct Arguments {
    words: [u64; WORDS],
    used: usize,
    /// Index of the first eight-byte word of each kernel argument.
    starts: Vec<u8>,
    /// Bit set of the kernel arguments that are device addresses, by argument index.
    addresses: u64,
}

impl Arguments {
    /// Creates a list of kernel arguments that begins with device addresses.
    pub fn of<const N: usize>(addresses: [Address; N]) -> Self {
        let empty = Self { starts: Vec::with_capacity(12), ..Self::default() };
        addresses.into_iter().fold(empty, Self::address)
    }

    /// Appends a device address to the kernel arguments, which [`Arguments::addresses`] lists.
    pub fn address(mut self, address: Address) -> Self {
        self.addresses |= 1 << self.starts.len();
        self.value(address.0)
    }

    /// Appends a number to the kernel arguments, or a `repr(C)` structure with the layout that the
    /// kernel reads.
    ///
    /// # Panics
    /// The kernel's arguments together exceed 256 bytes.
    pub fn value<T: NoUninit>(self, value: T) -> Self {
        self.bytes(bytemuck::bytes_of(&value))
    }

    /// Appends the bytes of a number or of a `repr(C)` structure to the kernel arguments.
    ///
    /// # Panics
    /// The kernel's arguments together exceed 256 bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        let words = bytes.len().div_ceil(8);
        assert!(self.used + words <= WORDS, "the arguments of a kernel fit");
        let to = bytemuck::cast_slice_mut::<u64, u8>(&mut self.words[self.used..]);
        to[..bytes.len()].copy_from_slice(bytes);
        self.starts.push(self.used as u8);
        self.used += words;
        self
    }

    /// Appends sizes to the kernel arguments, each as a number of 32 bits.
    pub fn sizes<const N: usize>(self, sizes: [usize; N]) -> Self {
        sizes.into_iter().fold(self, |arguments, size| arguments.value(size as u32))
    }

    /// Returns a pointer to each kernel argument, in the form that `cuLaunchKernel` takes. The
    /// pointers are valid while the list is not moved.
    pub fn pointers(&self) -> Vec<*const u64> {
        self.starts.iter().map(|start| &raw const self.words[usize::from(*start)]).collect()
    }

    /// Returns the device addresses among the kernel arguments, in order.
    pub fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        let is_address = |i: &usize| self.addresses >> i & 1 == 1;
        let indices = (0..self.starts.len()).filter(is_address);
        indices.map(|i| Address(self.words[usize::from(self.starts[i])]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_one_after_another() {
        let three = [1.5f32, 2.5, 3.5];
        let arguments = Arguments::of([Address(7)]).sizes([9]).value(three).value(1u64);
        let pointers = arguments.pointers();
        let words = pointers.iter().map(|at| (*at as usize - pointers[0] as usize) / 8);
        assert_eq!(words.collect::<Vec<_>>(), [0, 1, 2, 4]);
        assert_eq!(arguments.addresses().collect::<Vec<_>>(), [Address(7)]);
        assert_eq!(arguments.words[..2], [7, 9]);
    }
}
