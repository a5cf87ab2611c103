package roots

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"io"
	"io/fs"
	"reflect"
)

// ETagWhole is the size in bytes up to which a file's tag is computed from its content.
const ETagWhole = 128 << 10

// ETag identifies one state of a regular file by 12 letters and digits, which every file tool returns and accepts.
// Equal tags mean equal content.
//
// For a file of up to ETagWhole bytes it is computed from the content, which whole contains, so that touching the
// file or undoing a change gives the earlier tag. For a larger file it is computed from device, inode, size and the
// times of the last changes, and whole is ignored. A second change of the same length in place, within one tick of
// the file system's clock (a few milliseconds), can then remain unnoticed.
func ETag(info fs.FileInfo, whole []byte) string {
	if info.Size() <= ETagWhole {
		return tagOf('c', whole)
	}
	return tagOf('m', identity(info))
}

// ETagOf is ETag of an open file. It reads a small file.
func ETagOf(f io.ReaderAt, info fs.FileInfo) (string, error) {
	if info.Size() > ETagWhole {
		return ETag(info, nil), nil
	}
	whole := make([]byte, ETagWhole+1) // it may have grown since
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

// identity returns what the system knows about a file. The fields are read by name, because they differ between
// systems; missing fields are left out.
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

// Links returns the number of names of a file, or 1 if the system does not report it.
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
