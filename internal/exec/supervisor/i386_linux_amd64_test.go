package supervisor

import (
	"encoding/binary"
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// execI386 calls execve by int 0x80, with the number and the pointers of i386.
func execI386(argv []string) error {
	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_32BIT)
	if err != nil {
		return err
	}
	base := uint32(uintptr(unsafe.Pointer(&mem[0])))
	at := 4096
	var pointers []uint32
	for _, a := range append([]string{path0(argv)}, argv...) {
		pointers = append(pointers, base+uint32(at))
		at += copy(mem[at:], a) + 1
	}
	list := (at + 7) &^ 7
	for i, p := range append(pointers[1:], 0) {
		binary.LittleEndian.PutUint32(mem[list+4*i:], p)
	}
	code := []byte{0xb8, 11, 0, 0, 0} // mov eax, execve
	code = binary.LittleEndian.AppendUint32(append(code, 0xbb), pointers[0])
	code = binary.LittleEndian.AppendUint32(append(code, 0xb9), base+uint32(list))
	code = append(code, 0x31, 0xd2, 0xcd, 0x80, 0xc3) // xor edx, edx; int 0x80; ret
	copy(mem, code)
	entry := uintptr(unsafe.Pointer(&mem[0]))
	indirect := &entry
	call := *(*func())(unsafe.Pointer(&indirect))
	call()
	return errors.Join(syscall.ENOSYS)
}
