package roots

import (
	"io/fs"
	"reflect"
)

// FileID returns the same text for two names of one file, and different texts for different files while both exist.
// It returns "" if the system does not report it.
func FileID(info fs.FileInfo) string {
	v := reflect.Indirect(reflect.ValueOf(info.Sys()))
	if v.Kind() != reflect.Struct {
		return ""
	}
	var b []byte
	for _, name := range []string{"Dev", "Ino"} {
		b = appendNumbers(b, v.FieldByName(name))
	}
	return string(b)
}
