package roots

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"io"
	"io/fs"
	"reflect"
)

// ETagWhole is the largest file, in bytes, whose tag is made from its content.
const ETagWhole = 128 << 10

// ETag names one state of a regular file, in 12 letters and digits that every
// file tool gives and takes. Equal tags mean equal content.
//
// A file of up to ETagWhole bytes is named by its content, so that touching
// it, or taking a change back, leads to the tag it had. whole is then all of
// it. A larger file is named by its device, inode, size and the times of its
// last changes, and whole is not looked at; there a second change of the same
// length in place, within one tick of the file system's clock (a few
// milliseconds at worst), can go unseen.
func ETag(info fs.FileInfo, whole []byte) string {
	if info.Size() <= ETagWhole {
		return tagOf('c', whole)
	}
	return tagOf('m', identity(info))
}

// ETagOf is ETag of an open file; it reads a small one.
func ETagOf(f io.ReaderAt, info fs.FileInfo) (string, error) {
	if info.Size() > ETagWhole {
		return ETag(info, nil), nil
	}
	whole := make([]byte, ETagWhole+1) // it may have grown meanwhile
	n, err := f.ReadAt(whole[:info.Size()+1], 0)
	if err != nil && err != io.EOF {
		return "", err
	}
	return ETag(info, whole[:n]), nil
}

var tagText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

func tagOf(kind byte, b []byte) string {
	h := sha256.New()
	h.Write([]byte{kind})
	h.Write(b)
	return tagText.EncodeToString(h.Sum(nil)[:8])[:12] // 60 bits
}

// identity is what the system knows of a file. Its fields are read by name,
// since they differ by system; those that are missing count for nothing.
func identity(info fs.FileInfo) []byte {
	b := binary.AppendVarint(nil, info.Size())
	b = binary.AppendVarint(b, info.ModTime().UnixNano())
	v := reflect.Indirect(reflect.ValueOf(info.Sys()))
	if v.Kind() != reflect.Struct {
		return b
	}
	for _, name := range []string{"Dev", "Ino", "Ctim", "Ctimespec"} {
		b = appendNumbers(b, v.FieldByName(name))
	}
	return b
}

func appendNumbers(b []byte, v reflect.Value) []byte {
	switch {
	case !v.IsValid():
	case v.CanInt():
		b = binary.AppendVarint(b, v.Int())
	case v.CanUint():
		b = binary.AppendUvarint(b, v.Uint())
	case v.Kind() == reflect.Struct:
		for _, field := range v.Fields() {
			b = appendNumbers(b, field)
		}
	}
	return b
}

// Links is how many names a file has; 1 where the system does not say.
func Links(info fs.FileInfo) int {
	v := reflect.Indirect(reflect.ValueOf(info.Sys()))
	if v.Kind() != reflect.Struct {
		return 1
	}
	if n := v.FieldByName("Nlink"); n.IsValid() && n.CanUint() {
		return int(n.Uint())
	}
	return 1
}
