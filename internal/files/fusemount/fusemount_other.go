//go:build !linux

package fusemount

var none = &Unsupported{Reason: "mounting needs Linux"}

func supported() error { return none }

func (m *Mount) serve(*entry) error { return none }

func unmount(string, bool) error { return none }

// Unmount returns an error, since nothing can be mounted here.
func (m *Mount) Unmount(bool) error { return none }
