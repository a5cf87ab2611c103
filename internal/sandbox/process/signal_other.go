//go:build !unix

package process

import "fmt"

// signal cannot be had on this platform.
func signal(_, n int) error {
	return fmt.Errorf("signal %d cannot be sent on this platform; 9 ends the program", n)
}
