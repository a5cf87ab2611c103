package roots

import (
	"io/fs"
	"reflect"
)

// FileID is the same for two names of one file and different for two files, as
// long as neither is deleted; "" where the system does not tell.
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
